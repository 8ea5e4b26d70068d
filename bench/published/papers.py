"""The rows of the papers' tables and their variants here; the papers' numbers are in the `.toml` files."""

from typing import NamedTuple


class PaperRow(NamedTuple):
    """A row (or curve) of a paper; `variant` is a file of conf/attention, or None with the reason in `note`."""

    paper: str
    where: str
    row: str
    variant: str | None
    note: str = ""


V1 = "PolySketchFormer v1"
ICML = "PolySketchFormer ICML"
THESIS = "Thesis"  # Fast Algorithms for Attention Mechanism
SKEIN = "Skeinformer"

LM_TABLES = "Tables 2, 3"
BLOCKS = "the block size of the kernel is the library's own"
SIZE = "size 256 as in the text; its code has 128"
PILOTS = "in its code without the exact rows of the pilots, too: `attention.pilot_reuse=false`"


def _polysketch(kind: str) -> list[PaperRow]:
    learned, title = kind.startswith("learned"), kind.replace("_", " + ")
    where = "Tables 1, 2, 3, 4, 6; {}Appendices G, H" if learned else "Tables 2, 3, 4; {}Appendix H"
    return [
        PaperRow(ICML, where.format(figure), f"Polysketch ({title}, r = {r})", f"polysketch_{kind}_r{r}")
        for r, figure in ((32, "Figure 4; "), (64, ""))
    ]


ROWS: tuple[PaperRow, ...] = (
    PaperRow(V1, "Tables 1, 2", "Softmax", "softmax"),
    PaperRow(V1, "Tables 1, 2", "Polynomial", "polynomial_v1"),
    PaperRow(V1, "Tables 1, 2", "Polysketch", "polysketch_srht_r32", "the paper is silent on the layer norm kept here"),
    PaperRow(V1, "Table 2", "FlashAttention", "flash"),
    PaperRow(ICML, "Tables 1, 4, 5, 6; Figure 4; Appendices F, G, H", "Softmax", "softmax"),
    PaperRow(ICML, LM_TABLES, "Softmax (using FlashAttention)", "flash"),
    PaperRow(ICML, "Table 4; Figure 4", "FlashAttention (block size 256 x 256)", "flash", BLOCKS),
    PaperRow(ICML, "Table 4; Figure 4", "FlashAttention (block size 512 x 512)", "flash", BLOCKS),
    PaperRow(ICML, "Tables 2, 3, 4; Appendix H", "Polynomial (p = 2)", "polynomial_p2"),
    PaperRow(ICML, "Tables 1 to 6; Appendices F, G, H", "Polynomial (p = 4)", "polynomial_p4"),
    PaperRow(ICML, "Tables 1 to 6; Appendices F, G, H", "Polynomial (p = 8)", "polynomial_p8"),
    *(row for kind in ("random", "learned", "random_local", "learned_local") for row in _polysketch(kind)),
    PaperRow(ICML, "Table 5", "Polysketch (learned + local)", "polysketch_learned_local_r32"),
    PaperRow(ICML, "Appendix F.2", "Polysketch, sketch size 16", "polysketch_learned_local_r16"),
    PaperRow(ICML, "Appendix F.2", "Polysketch, sketch size 32", "polysketch_learned_local_r32"),
    PaperRow(ICML, "Tables 2, 3, 4; Figure 4; Appendix H", "Performer (2k features, fast LT)", "performer_2048"),
    PaperRow(ICML, "Table 4", "Performer (256 features, without fast LT)", "performer_cumulative_sum"),
    PaperRow(V1, "Table 2", "Performer", "performer_cumulative_sum", "the paper is silent on the number of features"),
    *(PaperRow(THESIS, "Figures 5.1, 5.2", f"x^{p}", f"polynomial_p{p}") for p in (2, 4, 8)),
    PaperRow(THESIS, "Figure 5.3", "(1 + x)^2", "polynomial_square_d1"),
    *(PaperRow(THESIS, "Figures 5.3, 5.4", f"(1 + ... + x^{d})^2", f"polynomial_square_d{d}") for d in range(2, 7)),
    *(
        PaperRow(THESIS, "Figures 5.5, 5.6", f"learned, degree {d}", f"polynomial_square_learned_d{d}")
        for d in range(1, 7)
    ),
    PaperRow(THESIS, "Figures 5.7, 5.8", "softmax", "softmax"),
    PaperRow(THESIS, "Figures 5.7, 5.8", "ELU", "linear"),
    PaperRow(THESIS, "Figures 5.7, 5.8", "x^8", "polynomial_p8"),
    PaperRow(THESIS, "Figures 5.7, 5.8", "(1 + ... + x^5)^2", "polynomial_square_d5"),
    PaperRow(THESIS, "Figures 5.7, 5.8", "learned polynomial", "polynomial_square_learned_d3"),
    PaperRow(
        THESIS,
        "Figures 5.7, 5.8",
        "fixed learned polynomial",
        None,
        "its coefficients are in an attachment that is not printed: "
        "`attention=polynomial_square attention.coefficients=[...]` freezes any",
    ),
    PaperRow(SKEIN, "Tables 1, 2", "Standard", "softmax_dropout", "attention dropout 0.1 in training"),
    PaperRow(SKEIN, "Tables 1, 2, 3", "Standard w/o dropout", "softmax"),
    PaperRow(SKEIN, "Tables 1, 2; Figure 1", "V-Mean", "v_mean"),
    PaperRow(SKEIN, "Tables 1, 2, 3", "BigBird", "bigbird"),
    PaperRow(
        SKEIN, "Tables 1, 2, 3", "Performer", "performer", f"what the code ran is `performer_scaled_twice`; {SIZE}"
    ),
    PaperRow(SKEIN, "Tables 1, 2, 3", "Nystromformer", "nystromformer", SIZE),
    PaperRow(SKEIN, "Tables 1, 2", "Reformer", "reformer"),
    PaperRow(
        SKEIN,
        "Tables 1, 2, 3; Figure 1",
        "Linformer",
        "linformer_frozen",
        f"fixed, as in its code; trained: `linformer`; {SIZE}",
    ),
    PaperRow(SKEIN, "Tables 1, 2", "Linformer w/ unreduced JLT", "linformer_unreduced"),
    PaperRow(
        SKEIN, "Tables 1, 2, 3; Figure 1", "Informer", "informer_paper_mapping", f"with u = d: `informer`; {SIZE}"
    ),
    PaperRow(SKEIN, "Tables 1, 2", "Informer w/ padding mask", "informer_padding_mask"),
    PaperRow(SKEIN, "Tables 1, 2, 3; Figure 1", "Skeinformer", "skeinformer"),
    PaperRow(SKEIN, "Tables 1, 2", "Skeinformer w/o column sampling", "skeinformer_uniform_sampling", PILOTS),
    PaperRow(SKEIN, "Tables 1, 2", "Skeinformer w/o row normalization", "skeinformer_no_row_normalization", PILOTS),
    PaperRow(
        SKEIN, "Tables 1, 2", "Skeinformer w/ simple row normalization", "skeinformer_simple_row_normalization", PILOTS
    ),
    PaperRow(SKEIN, "Tables 1, 2", "Skeinformer w/o pilot sampling reutilization", "skeinformer_no_pilot_reuse"),
)

NAMES = {row.variant: row.row for row in reversed(ROWS) if row.variant}
"""The name of each variant in the papers' tables: the first one, if there are several."""
