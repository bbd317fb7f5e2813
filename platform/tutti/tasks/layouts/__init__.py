"""How files of rows are read, one small file per layout."""
