"""`catalejo bench loadtest`: how far load harnesses are from the truth, side by side on one machine."""
