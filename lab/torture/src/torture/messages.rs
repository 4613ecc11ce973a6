//! What the writer reports to its parent, over a pipe: records of 16 bytes, each written by one
//! call, so that a kill cuts none.

use std::io::{self, Read};

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// The store is about to be opened.
    Opening,
    /// So many commits of a thread were there when the store was open.
    Found {
        /// The thread.
        thread: usize,
        /// Its commits.
        count: u64,
    },
    /// All threads write from now on.
    Open,
    /// That many commits of a thread are acknowledged: the engine said so before this was written.
    Acknowledged {
        /// The thread.
        thread: usize,
        /// Its commits.
        count: u64,
    },
}

const LEN: usize = 16;

impl Message {
    pub(crate) fn encode(self) -> [u8; LEN] {
        let (kind, thread, count) = match self {
            Self::Opening => (1_u32, 0, 0),
            Self::Found { thread, count } => (2, thread, count),
            Self::Open => (3, 0, 0),
            Self::Acknowledged { thread, count } => (4, thread, count),
        };
        let mut bytes = [0; LEN];
        let (kind_bytes, rest) = bytes.split_at_mut(4);
        let (thread_bytes, count_bytes) = rest.split_at_mut(4);
        kind_bytes.copy_from_slice(&kind.to_le_bytes());
        thread_bytes.copy_from_slice(&(thread as u32).to_le_bytes());
        count_bytes.copy_from_slice(&count.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; LEN]) -> Option<Self> {
        let word = u128::from_le_bytes(bytes);
        let (kind, thread, count) = (word as u32, (word >> 32) as u32 as usize, (word >> 64) as u64);
        match kind {
            1 => Some(Self::Opening),
            2 => Some(Self::Found { thread, count }),
            3 => Some(Self::Open),
            4 => Some(Self::Acknowledged { thread, count }),
            _ => None,
        }
    }

    /// The next record; `None` where the writer is gone.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = [0; LEN];
        match from.read_exact(&mut bytes) {
            Ok(()) => Self::decode(bytes).map(Some).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the writer said something unknown")
            }),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let sent = [
            Message::Opening,
            Message::Found { thread: 3, count: 77 },
            Message::Open,
            Message::Acknowledged {
                thread: 4,
                count: 1 << 40,
            },
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(|m| m.encode()).collect();
        let mut pipe = bytes.as_slice();
        for message in sent {
            assert_eq!(Message::read(&mut pipe).unwrap(), Some(message));
        }
        assert_eq!(Message::read(&mut pipe).unwrap(), None);
        assert!(Message::read(&mut [9; LEN].as_slice()).is_err());
    }
}
