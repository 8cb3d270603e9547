# SPDX-License-Identifier: Apache-2.0
"""`examples/count_words.py`: text files in, counts out, through one keyed pipelined exchange on Spark.

A word is a run of letters, digits and underscores. ASCII letters are taken as small letters. Every character
beyond ASCII counts as a letter, in the case it has: so `naïve` is one word and so is a row of Chinese characters,
but a dash or a quotation mark from beyond ASCII sticks to its word. Text is UTF-8 without NUL bytes.
"""
