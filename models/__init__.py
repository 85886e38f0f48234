"""The attrs reference model: frozen values, and the rules that move them."""
