"""The papers' own numbers, read from `bench/published`, where each table names its source."""

import tomllib
from pathlib import Path

import pandas as pd

PUBLISHED = Path(__file__).parents[1] / "bench" / "published"
PAPERS = ("polysketchformer", "skeinformer", "thesis")
COLUMNS = ("paper", "source", "metric", "of", "conditions", "hardware", "axis", "at", "row", "layers", "attention")


def published(metric: str) -> pd.DataFrame:
    """One row for each number that a paper prints of a metric, and for each variant of the zoo that the row matches.

    Returns:
        `COLUMNS` and `printed`: the number, or the text printed instead, such as `OOM`.
    """
    rows = []
    for paper in PAPERS:
        for table in tomllib.loads((PUBLISHED / f"{paper}.toml").read_text())["table"]:
            for row in table["rows"] if table["metric"] == metric else ():
                common = {key: value for key, value in (table | row).items() if key in COLUMNS} | {"row": row["row"]}
                rows += [
                    common | {"attention": attention, "at": at, "printed": printed}
                    for attention in row["mechanisms"]
                    for at, printed in zip(table["at"], row["values"], strict=True)
                ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "printed"])


def beside(table: pd.DataFrame, metric: str, of: str | None = None) -> pd.DataFrame:
    """Add the papers' numbers to a table of ours (`attention`, `n`): a column for each paper and data set (`of`).

    Lengths that only a paper has get rows of their own. If two rows of a paper match one variant of the zoo, both
    numbers are in one cell ("4.78 or 5.46").
    """
    theirs = published(metric)
    theirs = theirs[theirs["attention"].isin(table["attention"]) & ((theirs["of"] == of) | (of is None))]
    if theirs.empty:
        return table
    theirs = theirs.assign(column=theirs["of"] + " (" + theirs["paper"] + ")", n=theirs["at"].astype("int64"))
    keys = ["attention", "n"]

    def shared(printed: pd.Series) -> object:
        return printed.iloc[0] if len(printed) == 1 else " or ".join(map(str, printed))

    columns = theirs.pivot_table(index=keys, columns="column", values="printed", aggfunc=shared, sort=False)
    return table.merge(columns.reset_index(), on=keys, how="outer", sort=True)
