"""A snapshot as tables: state and rows in flight decoded without Spark and without Java, asked with SQL.

gather, types, unsafe_rows              Spark's types and rows, as Arrow
records, key_hashes, state_changes      runs of changes, and what they leave of each key
state_files, state_schema, state_rows   the files of a state store, what they hold, and their entries
state_tables                            tables and columns as the user's code names them
delta_log, channels, sinks, meta, live  everything else that a cut has
kept_rows, cache                        state that was decoded once
relations, named_columns, engine, cut   what can be asked, by what, and from where
judging, asking, evaluator              invariants, asked of a cut, in a process of their own
diff, bisecting                         what two cuts differ in, and at which one an invariant broke
"""
