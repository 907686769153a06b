# Interactive bash shells. Add your own settings here.
