"""Arrow IPC and Parquet files, and the columns of Arrow."""
