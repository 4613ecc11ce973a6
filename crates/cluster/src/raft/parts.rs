//! A stream of entries in parts.

use futures_util::{Stream, StreamExt, stream};

/// Entries of a part, at most.
const ENTRIES: usize = 256;
/// Bytes of a part: no entry is added to one that has as many.
const BYTES: usize = 1 << 20;

/// The items in their order, in parts of at most 256. A part ends with the item by which its sum of
/// `bytes` reaches 1 MiB.
pub(super) fn parts<T, S>(items: S, bytes: impl Fn(&T) -> usize) -> impl Stream<Item = Vec<T>>
where
    S: Stream<Item = T> + Unpin,
{
    stream::unfold((items.fuse(), bytes), |(mut items, bytes)| async move {
        let (mut part, mut sum) = (Vec::new(), 0);
        while part.len() < ENTRIES && sum < BYTES {
            let Some(next) = items.next().await else { break };
            sum += bytes(&next);
            part.push(next);
        }
        (!part.is_empty()).then_some((part, (items, bytes)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_has_neither_more_entries_nor_more_bytes_than_it_may() {
        let sizes = |all: Vec<usize>| async {
            let parts = parts(stream::iter(all), |bytes| *bytes);
            parts.map(|part| part.len()).collect::<Vec<_>>().await
        };
        assert_eq!(sizes(vec![10; 600]).await, [256, 256, 88]);
        assert_eq!(sizes(vec![400 << 10; 7]).await, [3, 3, 1]);
        assert_eq!(sizes(vec![8 << 20; 2]).await, [1, 1]);
        assert_eq!(sizes(Vec::new()).await, [0; 0]);
    }
}
