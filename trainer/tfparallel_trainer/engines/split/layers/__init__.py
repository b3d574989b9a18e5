"""How single layers are split over ranks: layouts, communication, the choice of rules."""
