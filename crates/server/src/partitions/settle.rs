//! The wait of a connection until its replies hold: until the cluster has decided on their commands.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use crate::cluster::{Settled, Settling};

/// Replies of one connection that wait for this: more are sent before the rest of a pipeline runs.
pub(crate) const UNSETTLED_MAX: usize = 4096;

/// What the replies of a connection wait for.
#[derive(Default)]
pub(crate) struct Unsettled {
    /// The current command's.
    current: Vec<Settling>,
    /// Those of the commands before it that are not sent yet, each with the number of its reply.
    earlier: Vec<(usize, Settling)>,
}

impl fmt::Debug for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsettled")
            .field("current", &self.current.len())
            .field("earlier", &self.earlier.len())
            .finish()
    }
}

impl Unsettled {
    /// Adds what the current command's reply waits for.
    pub(crate) fn add(&mut self, settlings: impl IntoIterator<Item = Settling>) {
        self.current.extend(settlings);
    }

    /// Whether the current command's reply waits for anything.
    pub(crate) fn has_current(&self) -> bool {
        !self.current.is_empty()
    }

    /// Ends the current command, whose reply has this number.
    pub(crate) fn conclude(&mut self, reply: usize) {
        self.earlier
            .extend(self.current.drain(..).map(|settling| (reply, settling)));
    }

    /// Whether there are replies of earlier commands that wait.
    pub(crate) fn has_earlier(&self) -> bool {
        !self.earlier.is_empty()
    }

    /// Whether no reply waits, the current command's or an earlier one's.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_empty() && self.earlier.is_empty()
    }

    /// Whether there are so many that they are to be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.earlier.len() >= UNSETTLED_MAX
    }

    /// Drops everything: the replies are not sent.
    pub(crate) fn clear(&mut self) {
        self.current.clear();
        self.earlier.clear();
    }

    /// Waits for the earlier commands, for all at the same time. Returns what became of each of the
    /// `replies`.
    pub(crate) async fn settle(&mut self, replies: usize) -> Vec<Settled> {
        let mut settled = vec![Settled::Holds; replies];
        let (numbers, settlings): (Vec<usize>, Vec<Settling>) = self.earlier.drain(..).unzip();
        for (number, result) in numbers.into_iter().zip(all(settlings).await) {
            if let Some(reply) = settled.get_mut(number) {
                *reply = worse(*reply, result);
            }
        }
        settled
    }
}

/// The outcome of a reply that waits for both.
fn worse(one: Settled, other: Settled) -> Settled {
    match (one, other) {
        (Settled::Unknown, _) | (_, Settled::Unknown) => Settled::Unknown,
        (Settled::TryAgain, _) | (_, Settled::TryAgain) => Settled::TryAgain,
        (Settled::Holds, Settled::Holds) => Settled::Holds,
    }
}

/// Waits for all. Polls each at first, and later those whose waker was called: the replies of a long
/// pipeline settle in many steps, and polling all in each step would take the square of their number.
async fn all(settlings: Vec<Settling>) -> Vec<Settled> {
    let mut settled = vec![Settled::Holds; settlings.len()];
    let woken = Arc::new(Woken::default());
    let mut left = settlings.len();
    let mut waiting: Vec<Option<(Settling, Arc<Call>)>> = settlings
        .into_iter()
        .enumerate()
        .map(|(number, settling)| {
            let woken = Arc::clone(&woken);
            let is_called = AtomicBool::new(false);
            let call = Arc::new(Call {
                number,
                is_called,
                woken,
            });
            Arc::clone(&call).wake();
            Some((settling, call))
        })
        .collect();
    poll_fn(|context| {
        for number in woken.take(context) {
            let Some(slot) = waiting.get_mut(number) else {
                continue;
            };
            let Some((settling, call)) = slot else { continue };
            call.begin();
            let waker = Waker::from(Arc::clone(call));
            if let Poll::Ready(result) = settling.as_mut().poll(&mut Context::from_waker(&waker)) {
                if let Some(own) = settled.get_mut(number) {
                    *own = result;
                }
                *slot = None;
                left -= 1;
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    settled
}

/// The settlings that are to be polled.
#[derive(Default)]
struct Woken(Mutex<(Vec<usize>, Option<Waker>)>);

impl Woken {
    /// Takes their numbers. Those that come later wake the task.
    fn take(&self, context: &Context<'_>) -> Vec<usize> {
        let mut woken = self.0.lock();
        woken.1 = Some(context.waker().clone());
        std::mem::take(&mut woken.0)
    }
}

/// The waker of one settling.
struct Call {
    number: usize,
    /// Whether its number is in `woken` already.
    is_called: AtomicBool,
    woken: Arc<Woken>,
}

impl Call {
    /// Before a poll: what wakes it from here on counts anew.
    fn begin(&self) {
        // Release pairs with the AcqRel in `wake`: a wake that finds the flag cleared adds the number
        // again, and one that finds it set comes before this poll.
        self.is_called.store(false, Ordering::Release);
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        // AcqRel pairs with the Release in `begin`.
        if self.is_called.swap(true, Ordering::AcqRel) {
            return;
        }
        let waker = {
            let mut woken = self.woken.0.lock();
            woken.0.push(self.number);
            woken.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(outcome: Settled) -> (tokio::sync::oneshot::Sender<()>, Settling) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let settling = Box::pin(async move {
            // A sender that is dropped settles as well.
            let _ = receiver.await;
            outcome
        });
        (sender, settling)
    }

    #[tokio::test]
    async fn every_reply_has_the_worst_of_what_it_waits_for() {
        let mut unsettled = Unsettled::default();
        let mut senders = Vec::new();
        for (reply, outcomes) in [
            (0, vec![Settled::Holds]),
            (2, vec![Settled::TryAgain, Settled::Holds]),
            (3, vec![Settled::Holds, Settled::Unknown, Settled::TryAgain]),
        ] {
            for outcome in outcomes {
                let (sender, settling) = later(outcome);
                senders.push(sender);
                unsettled.add([settling]);
            }
            unsettled.conclude(reply);
        }
        let settled = tokio::spawn(async move { unsettled.settle(4).await });
        // In the opposite order.
        while let Some(sender) = senders.pop() {
            tokio::task::yield_now().await;
            drop(sender);
        }
        let expected = [
            Settled::Holds,
            Settled::Holds,
            Settled::TryAgain,
            Settled::Unknown,
        ];
        assert_eq!(settled.await.unwrap(), expected);
    }

    #[tokio::test]
    async fn settlings_are_polled_only_when_they_ask_for_it() {
        const COUNT: usize = 1_000;
        let polls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (mut senders, mut settlings) = (Vec::new(), Vec::new());
        for _ in 0..COUNT {
            let (sender, mut settling) = later(Settled::Holds);
            let polls = Arc::clone(&polls);
            senders.push(sender);
            settlings.push(Box::pin(poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                settling.as_mut().poll(context)
            })) as Settling);
        }
        let settled = tokio::spawn(all(settlings));
        for sender in senders {
            tokio::task::yield_now().await;
            drop(sender);
        }
        assert_eq!(settled.await.unwrap().len(), COUNT);
        // Some more where the runtime's budget for one poll is used up.
        assert!(polls.load(Ordering::Relaxed) <= 4 * COUNT);
    }
}
