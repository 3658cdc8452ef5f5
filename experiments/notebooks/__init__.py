"""Notebooks, one text file each (jupytext's percent format): open them in Jupyter, or `make notebooks`.

They draw from the results in `report/measured/`, or with `MEASURE = True` from a fresh measurement of their own.
"""
