//! What the logs that are compared have in common.

use std::path::Path;

use collie_log::{Level, Log, LogOptions, Worker};

use crate::error::BenchError;

/// A log under measurement.
pub(crate) trait Contender: Sync {
    /// A thread's handle to append with.
    type Appender<'a>: Appender
    where
        Self: 'a;

    fn appender(&self) -> Result<Self::Appender<'_>, BenchError>;
    /// Blocks until everything below `end` is safe at `level`.
    fn wait(&self, end: u64, level: Level) -> Result<(), BenchError>;
    /// How far the log is written or, at [`Level::Disk`], durable.
    fn reached(&self, level: Level) -> u64;
    /// Called every few milliseconds.
    fn tidy(&self);
    fn close(self) -> Result<(), BenchError>;
}

/// Appends frames for one thread.
pub(crate) trait Appender {
    /// Appends a frame and returns its end.
    fn append(&mut self, payload: &[u8]) -> Result<u64, BenchError>;
}

/// Collie's log.
#[derive(Debug)]
pub(crate) struct Collie(Log);

impl Collie {
    pub(crate) fn open(dir: &Path, options: LogOptions) -> Result<Self, BenchError> {
        let log = Log::open(dir, options)?;
        log.retain("bench", log.durable());
        Ok(Self(log))
    }
}

impl Contender for Collie {
    type Appender<'a> = Worker;

    fn appender(&self) -> Result<Worker, BenchError> {
        Ok(self.0.worker()?)
    }

    fn wait(&self, end: u64, level: Level) -> Result<(), BenchError> {
        Ok(self.0.wait(end, level)?)
    }

    fn reached(&self, level: Level) -> u64 {
        match level {
            Level::Disk => self.0.durable(),
            _ => self.0.written(),
        }
    }

    /// The log is never read, so that its segments may be used again.
    fn tidy(&self) {
        self.0.retain("bench", self.0.durable());
    }

    fn close(self) -> Result<(), BenchError> {
        Ok(self.0.close()?)
    }
}

impl Appender for Worker {
    fn append(&mut self, payload: &[u8]) -> Result<u64, BenchError> {
        Ok(Worker::append(self, 0, 1, payload)?.end)
    }
}
