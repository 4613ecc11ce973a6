//! What nodes say to each other of what they lead, and what parked replicas make of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::node::router::Router;
use crate::raft::count;
use crate::transport::Peers;

/// From one look at what this node leads to the next: many groups change their leaders together.
const PAUSE: Duration = Duration::from_millis(10);

/// Sends other nodes what this one leads, until the node ends.
pub(super) async fn say_what_is_led(
    router: Arc<Router>,
    peers: Arc<Peers>,
    mut changes: watch::Receiver<u64>,
) {
    loop {
        changes.borrow_and_update();
        let replicas = router.replicas().into_iter();
        let led = replicas.filter_map(|replica| Some((replica.group(), replica.leads_in()?)));
        peers.set_led(led.collect());
        if changes.changed().await.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Wakes replicas whose group is parked when another node is silent or says something else, and what waits for a leader
/// elsewhere, until the node ends.
pub(super) async fn hear_what_is_led(router: Arc<Router>, peers: Arc<Peers>, changes: watch::Sender<u64>) {
    let (mut states, mut led) = (peers.states(), peers.leaders());
    loop {
        {
            let (states, led) = (states.borrow_and_update(), led.borrow_and_update());
            for replica in router.replicas() {
                replica.look_at(&states, &led);
            }
        }
        let changed = tokio::select! {
            changed = states.changed() => changed,
            changed = led.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        count(&changes);
    }
}
