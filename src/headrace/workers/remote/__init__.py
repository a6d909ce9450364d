"""Workers on other machines: a proxy process here stands for each, and a host process there runs it."""
