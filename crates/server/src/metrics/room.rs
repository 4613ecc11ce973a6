//! Room for connections, of which those without a request give way to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Room for so many connections.
#[derive(Debug)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    silent: Mutex<Silent>,
}

/// The connections that have not sent their request.
#[derive(Debug, Default)]
struct Silent {
    entered: u64,
    /// In the order in which they came.
    places: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The place of one connection; dropping it makes room.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    displaced: Option<oneshot::Receiver<()>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    pub(super) fn new(places: usize) -> Room {
        Room {
            free: Arc::new(Semaphore::new(places)),
            silent: Mutex::default(),
        }
    }

    /// A place for a connection. Where there is none, the oldest connection that has sent no request
    /// has to go; where there is no such one, it waits until a request has been answered.
    pub(super) async fn enter(self: &Arc<Room>) -> Place {
        if self.free.available_permits() == 0
            && let Some((_, oldest)) = self.silent.lock().places.pop_first()
        {
            // Its connection may have ended at this moment.
            let _ = oldest.send(());
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let (sender, displaced) = oneshot::channel();
        let mut silent = self.silent.lock();
        silent.entered += 1;
        let number = silent.entered;
        silent.places.insert(number, sender);
        drop(silent);
        Place {
            room: Arc::clone(self),
            number,
            displaced: Some(displaced),
            _permit: permit,
        }
    }
}

impl Place {
    /// Completes when the connection has to go, which it does not once it has [asked](Place::asked).
    pub(super) fn displaced(&mut self) -> impl Future<Output = ()> + use<> {
        let displaced = self.displaced.take();
        async {
            let has_to_go = match displaced {
                Some(displaced) => displaced.await.is_ok(),
                None => false,
            };
            if !has_to_go {
                std::future::pending().await
            }
        }
    }

    /// The connection has sent its request, and stays until it is answered.
    pub(super) fn asked(&self) {
        self.room.silent.lock().places.remove(&self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.asked();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_without_a_request_has_to_go_and_one_with_a_request_stays() {
        let room = Arc::new(Room::new(3));
        let (mut asking, mut oldest, mut younger) =
            (room.enter().await, room.enter().await, room.enter().await);
        asking.asked();
        let ends = [asking.displaced(), oldest.displaced(), younger.displaced()];
        let [mut asking_ends, oldest_ends, mut younger_ends] = ends.map(Box::pin);
        let entering = Arc::clone(&room);
        let entering = tokio::spawn(async move { entering.enter().await });
        let patience = std::time::Duration::from_secs(10);
        let ended = tokio::time::timeout(patience, oldest_ends).await;
        ended.expect("the oldest has to go");
        assert!(!entering.is_finished(), "it waits until there is room");
        drop(oldest);
        let newest = entering.await.unwrap();
        for stays in [&mut asking_ends, &mut younger_ends] {
            assert!(is_pending(stays.as_mut()));
        }
        newest.asked();
        younger.asked();
        let mut waiting = Box::pin(room.enter());
        assert!(is_pending(waiting.as_mut()), "all of them are being answered");
        drop(asking);
        waiting.await.asked();
    }

    fn is_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_pending()
    }
}
