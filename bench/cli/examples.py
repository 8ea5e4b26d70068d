"""Ten examples that `python -m bench` without arguments prints before it imports anything."""

EXAMPLES = """\
Attention zoo: which efficient attention, from which length on, at what cost in time, memory and quality?

  python -m bench experiment=demo                                    a first comparison, some minutes
  python -m bench attention=flash,performer seq_len=1024,4096        time: twelve cells (three passes each)
  python -m bench bench=compare attention=flash,linear causal=true   which is faster, in interleaved rounds
  python -m bench bench=memory attention=softmax,flash seq_len=8192  peak memory
  python -m bench bench=spectral_norm inputs=pretrained attention=skeinformer,v_mean     error on a trained model
  python -m bench experiment=lm_small size=minutes                   what models learn with each
  python -m bench attention=polysketch attention.degree=4,8 causal=true                  a setting of a mechanism
  python -m bench attention=flash,performer dry_run=true             what there is to measure, how long it may take
  python -m analysis figures --results runs                          figures of the records (tables: tables)
  attention-zoo ui                                                   the runs side by side, in MLflow

A comma makes a sweep, a dot reaches a setting. The same command goes on where it stopped. `attention-zoo list` says
what each mechanism is; `python -m bench --help` lists everything, `python -m bench attention=polysketch --help` the
settings of what is chosen."""
