"""Files of this machine: replaced whole, regular ones only, temporary folders."""
