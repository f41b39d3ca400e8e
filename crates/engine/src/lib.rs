//! The engine: requests, FIFO scheduling, one worker thread over any executor.
#![forbid(unsafe_code)]
