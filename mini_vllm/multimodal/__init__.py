"""Images in prompts: from an image to rows of the model's input embeddings.

hasher.py       identifies an image by a hash of everything that changes its embeddings
processing.py   a prompt with images -> a longer prompt, and a feature for each image
chat.py         the images of a conversation
media.py        images by URL: data URLs, allowed hosts, files
mrope.py        positions in three dimensions
gather.py       copies the rows that a step needs from the encoder's output into the embeddings
inputs.py       the two classes that describe an image to the scheduler
"""
