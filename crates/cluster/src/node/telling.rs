//! Telling the other nodes what this one leads, and hearing it of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::node::shared::Inner;

/// From one look at what this node leads to the next: many groups change their leaders together.
const PAUSE: Duration = Duration::from_millis(10);

/// Tells what this node leads, and wakes what waits for a leader elsewhere, until the node ends.
pub(super) async fn tell_leaders(inner: Arc<Inner>) {
    let mut changes = inner.node.changes();
    let mut heard = inner.peers().leaders();
    loop {
        changes.borrow_and_update();
        let replicas = inner.node.replicas().into_iter();
        let led = replicas.filter_map(|replica| Some((replica.group(), replica.leads_in()?)));
        inner.peers().set_led(led.collect());
        let changed = tokio::select! {
            biased;
            changed = heard.changed() => {
                drop(heard.borrow_and_update());
                inner.changed();
                changed
            }
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}
