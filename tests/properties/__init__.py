"""Properties of the pure parts, on values that hypothesis makes up, beside brute force."""
