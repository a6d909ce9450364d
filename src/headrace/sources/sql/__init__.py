"""SQL tables as training data: what is connected to, how queries are worded, and how their answers become columns.

`targets` says what to connect to, `sessions` has a connection for each kind of library, `database` keeps them open and
repeats queries when one breaks, `relation` words the queries over a table or the user's query, `key_index` holds the
keys of all rows, and `log` reads a table that grows.
"""
