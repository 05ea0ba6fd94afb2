"""How answers are shown: the text of a check, pictures, topology, differences, schemas of JSON."""
