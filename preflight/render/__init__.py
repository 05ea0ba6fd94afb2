"""Tables, sentences, plain data and HTML pages, whatever they are about. Pure: it returns text."""
