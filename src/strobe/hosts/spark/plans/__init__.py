"""What the plan of a query says: its operators, and what the state that they keep means."""
