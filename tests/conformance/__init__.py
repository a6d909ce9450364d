"""What every drop-in for `torch.utils.data.DataLoader` has to do, told as tests.

Each test runs once with torch's class and once with headrace's (the fixture `Loader`). The first run
proves that the test describes torch; the second that headrace behaves the same.
"""
