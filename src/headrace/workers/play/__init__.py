"""An epoch that is played through, to predict how long it takes by other rules."""
