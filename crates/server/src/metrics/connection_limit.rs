//! ConnectionLimit for connections, of which those without a request give way to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// ConnectionLimit for so many connections.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    free: Arc<Semaphore>,
    silent: Mutex<Silent>,
}

/// The connections that have not sent their request.
#[derive(Debug, Default)]
struct Silent {
    admitted: u64,
    /// In the order in which they came.
    places: BTreeMap<u64, oneshot::Sender<()>>,
}

/// An admitted connection; dropping it makes room for another.
#[derive(Debug)]
pub(super) struct Admitted {
    limit: Arc<ConnectionLimit>,
    number: u64,
    evicted: Option<oneshot::Receiver<()>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ConnectionLimit {
    pub(super) fn new(most: usize) -> ConnectionLimit {
        ConnectionLimit {
            free: Arc::new(Semaphore::new(most)),
            silent: Mutex::default(),
        }
    }

    /// Admits a connection. At the limit, the oldest connection that has sent no request is evicted; where
    /// there is no such one, this waits until a request has been answered.
    pub(super) async fn admit(self: &Arc<ConnectionLimit>) -> Admitted {
        if self.free.available_permits() == 0
            && let Some((_, oldest)) = self.silent.lock().places.pop_first()
        {
            // Its connection may have ended at this moment.
            let _ = oldest.send(());
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let (sender, evicted) = oneshot::channel();
        let mut silent = self.silent.lock();
        silent.admitted += 1;
        let number = silent.admitted;
        silent.places.insert(number, sender);
        drop(silent);
        Admitted {
            limit: Arc::clone(self),
            number,
            evicted: Some(evicted),
            _permit: permit,
        }
    }
}

impl Admitted {
    /// Completes when the connection is evicted, which it is not once its
    /// [request was received](Admitted::request_received).
    pub(super) fn evicted(&mut self) -> impl Future<Output = ()> + use<> {
        let evicted = self.evicted.take();
        async {
            let is_evicted = match evicted {
                Some(evicted) => evicted.await.is_ok(),
                None => false,
            };
            if !is_evicted {
                std::future::pending().await
            }
        }
    }

    /// The connection has sent its request, and stays until it is answered.
    pub(super) fn request_received(&self) {
        self.limit.silent.lock().places.remove(&self.number);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.request_received();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_without_a_request_is_evicted_and_no_other() {
        let limit = Arc::new(ConnectionLimit::new(3));
        let (mut asking, mut oldest, mut younger) =
            (limit.admit().await, limit.admit().await, limit.admit().await);
        asking.request_received();
        let ends = [asking.evicted(), oldest.evicted(), younger.evicted()];
        let [mut asking_ends, oldest_ends, mut younger_ends] = ends.map(Box::pin);
        let entering = Arc::clone(&limit);
        let entering = tokio::spawn(async move { entering.admit().await });
        let patience = std::time::Duration::from_secs(10);
        let ended = tokio::time::timeout(patience, oldest_ends).await;
        ended.expect("the oldest is evicted");
        assert!(!entering.is_finished(), "it waits until there is room");
        drop(oldest);
        let newest = entering.await.unwrap();
        for stays in [&mut asking_ends, &mut younger_ends] {
            assert!(is_pending(stays.as_mut()));
        }
        newest.request_received();
        younger.request_received();
        let mut waiting = Box::pin(limit.admit());
        assert!(is_pending(waiting.as_mut()), "all of them are being answered");
        drop(asking);
        waiting.await.request_received();
    }

    fn is_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_pending()
    }
}
