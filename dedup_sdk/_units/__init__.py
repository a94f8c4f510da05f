"""Units: runs of records of one partition that stand or fall together, as a broker's transaction does.

unit
    the records of a partition that bear one unit ID, from the first one to the one that makes it whole. Others may lie
    between them.
end
    the record that makes a unit whole: the last of as many as one of them states, or the one with the end mark
whole
    all its records have come. Only then it is judged, all at once and as if they all lay at its end: units and records
    without a unit are judged in the order of ends.
failed
    it cannot become whole, or not in time: its records are delivered one by one, as unverified, and leave no mark
"""
