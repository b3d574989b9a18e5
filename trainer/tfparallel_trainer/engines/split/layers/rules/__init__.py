"""How single layers are split: a rule for each kind of layer and way of splitting it."""
