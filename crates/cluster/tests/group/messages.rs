//! One replica whose peers are played by the test: what it asks, what it answers, and when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use collie_cluster::NodeStoreOptions;
use collie_cluster::testing::proposals::{Header, RunId, Ticket};
use collie_cluster::testing::replica_store::effects::{Effect, EffectsBuf};
use collie_cluster::testing::replica_store::{Described, Description, Position};
use collie_cluster::testing::wire::{
    Append, Appended, Installed, LogEntry, Offer, Payload, Piece, Refusal, Request, Response, Room,
    SnapshotEnd, TransferLeader, VoteAnswer, VoteRequest,
};
use collie_cluster::testing::{EntryId, LeaderId, NodeOptions, NodeStore, ReplicaError, Vote};
use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice, SplitDevice};

use crate::alone::Alone;
use crate::cluster::{CAP, GROUP, log_options, members, node_options, peers_options, replica_on, runtime};

/// Puts all of the replica but its table files on a simulated device.
fn tables_on(device: &SimDevice, options: &mut NodeOptions) {
    let replica = options.store.disks[0]
        .join("replicas")
        .join(replica_on(1).to_string());
    options.machine.db.device = Arc::new(SplitDevice::new(
        replica.join("store/families"),
        Arc::new(RealDevice::new()),
        Arc::new(device.clone()) as _,
    ));
}

fn vote(term: u64, replica: u64) -> Vote {
    Vote {
        leader: LeaderId { term, replica },
        committed: false,
    }
}

fn ask(term: u64, replica: u64) -> VoteRequest {
    VoteRequest {
        vote: vote(term, replica),
        last: None,
        leadership_transfer: false,
    }
}

#[test]
fn nobody_is_asked_for_a_vote_who_would_not_give_it() {
    runtime().block_on(async {
        let mut alone = Alone::new(true).await;
        let term = alone.replica.state().unwrap().vote.term;
        // It asks for votes when it begins, and then whenever it hears nobody.
        let (mut asked, mut begun) = (0, false);
        while asked < 3 {
            let (incoming, reply) = alone.request().await;
            match incoming.request {
                Request::PreVote(_) => {
                    asked += 1;
                    let answer = VoteAnswer {
                        vote: vote(0, 0),
                        granted: false,
                        last: None,
                    };
                    reply.send(Response::PreVoted(answer));
                }
                // The one with which the group begins.
                Request::Vote(request) if asked == 0 && !begun => {
                    begun = true;
                    let answer = VoteAnswer {
                        vote: request.vote,
                        granted: false,
                        last: None,
                    };
                    reply.send(Response::Voted(answer));
                }
                other => panic!("it was told that it gets no vote, and sends {}", other.kind()),
            }
        }
        let now = alone.replica.state().unwrap().vote.term;
        assert!(now <= term + 1, "term {term} was left for {now} without a chance");
        // Told that it gets one, it asks for it.
        loop {
            let (incoming, reply) = alone.request().await;
            match incoming.request {
                Request::PreVote(request) => reply.send(Response::PreVoted(VoteAnswer {
                    vote: request.vote,
                    granted: true,
                    last: None,
                })),
                Request::Vote(_) => break,
                other => panic!("expected a request for a vote, found {}", other.kind()),
            }
        }
    });
}

#[test]
fn a_vote_is_on_the_device_before_its_answer() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let candidate = replica_on(2);
        let answer = alone
            .call(GROUP, replica_on(1), Request::Vote(ask(5, candidate)))
            .await;
        let image = alone.log.snapshot().power_cut(PowerCut::WAYS[0].1, 1);
        let Response::Voted(answer) = answer else {
            panic!("a request for a vote is answered by {answer:?}")
        };
        assert!(answer.granted, "{answer:?}");
        let mut options = alone_store(&alone, image.device());
        options.shared.log.threads = false;
        let store = NodeStore::open(options, Box::new(|_| {})).unwrap();
        let found = store.replica(replica_on(1)).unwrap().vote();
        assert_eq!(found, Some(vote(5, candidate)));
    });
}

fn alone_store(alone: &Alone, device: SimDevice) -> NodeStoreOptions {
    let mut log = log_options();
    log.device = Arc::new(device);
    node_options(alone.dir.path(), log, peers_options(1, alone.node.address())).store
}

/// Entries take the room of a full disk until they are refused, and votes what is kept for them.
#[test]
fn a_vote_without_room_is_refused_until_there_is_some() {
    const TERMS: u64 = 20_000;
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let mut last = None;
        let mut append = async || {
            let id = EntryId {
                leader,
                index: last.map_or(0, |id: EntryId| id.index + 1),
            };
            let entry = LogEntry {
                id,
                payload: Payload(vec![1; 30_000]),
            };
            let append = Append {
                vote: Vote {
                    leader,
                    committed: true,
                },
                previous: last,
                committed: None,
                entries: vec![entry],
            };
            let answer = alone.call(GROUP, replica_on(1), Request::Append(append)).await;
            if matches!(answer, Response::Appended(_)) {
                last = Some(id);
            }
            answer
        };
        append().await;
        alone.log.limit_space(Some(0));
        while let Response::Appended(_) = append().await {}
        assert_eq!(append().await, Response::Refusal(Refusal::NoRoom));
        let stand = async |term| {
            let request = VoteRequest {
                last,
                leadership_transfer: true,
                ..ask(term, replica_on(2))
            };
            alone.call(GROUP, replica_on(1), Request::Vote(request)).await
        };
        let mut terms = 2..TERMS;
        let refusal = loop {
            let term = terms.next().unwrap_or_else(|| panic!("votes need no room"));
            match stand(term).await {
                Response::Voted(answer) => assert!(answer.granted, "{answer:?}"),
                other => break other,
            }
        };
        assert_eq!(refusal, Response::Refusal(Refusal::NoRoom));
        alone.log.limit_space(None);
        let granted = tokio::time::timeout(CAP, async {
            while !matches!(stand(TERMS).await, Response::Voted(answer) if answer.granted) {
                tokio::task::yield_now().await;
            }
            while alone.replica.problem().is_some() {
                tokio::task::yield_now().await;
            }
        });
        granted
            .await
            .unwrap_or_else(|_| panic!("there is no vote, though there is room"));
    });
}

/// A leader that begins a term may send it together with an entry before it, which the follower has.
#[test]
fn a_full_log_takes_the_first_entry_of_a_term() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let id = |index| EntryId { leader, index };
        let large = |index| LogEntry {
            id: id(index),
            payload: Payload(vec![1; 30_000]),
        };
        let blank = |index| LogEntry {
            id: id(index),
            payload: Payload(vec![0]),
        };
        let append = async |entries: Vec<LogEntry>| {
            let first = entries[0].id.index;
            let append = Append {
                vote: Vote {
                    leader,
                    committed: true,
                },
                previous: first.checked_sub(1).map(id),
                committed: None,
                entries,
            };
            alone.call(GROUP, replica_on(1), Request::Append(append)).await
        };
        let mut next = 0;
        while let Response::Appended(_) = append(vec![large(next)]).await {
            if next == 0 {
                alone.log.limit_space(Some(0));
            }
            next += 1;
        }
        assert_eq!(
            append(vec![large(next - 1), large(next)]).await,
            Response::Refusal(Refusal::NoRoom)
        );
        let taken = append(vec![large(next - 1), blank(next)]).await;
        assert!(matches!(taken, Response::Appended(_)), "{taken:?}");
        let refused = append(vec![blank(next), large(next + 1)]).await;
        assert_eq!(refused, Response::Refusal(Refusal::NoRoom));
        // One that does not know what the follower has asks by old entries, which may be purged there.
        let logs = alone.node.logs();
        let replica = logs
            .iter()
            .find_map(|log| log.replica(replica_on(1)).ok())
            .unwrap();
        replica.purge(id(1)).await.unwrap();
        for entries in [vec![large(0)], vec![large(1), large(2)]] {
            let taken = append(entries).await;
            assert!(matches!(taken, Response::Appended(_)), "{taken:?}");
        }
    });
}

/// It would win, and what begins its term would be what has no room: each round takes some of what is kept for
/// votes and purges.
#[test]
fn a_replica_without_room_to_begin_a_term_does_not_stand() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let leads = Vote {
            leader,
            committed: true,
        };
        let id = |index| EntryId { leader, index };
        let append = async |index: u64, payload| {
            let append = Append {
                vote: leads,
                previous: index.checked_sub(1).map(id),
                committed: None,
                entries: vec![LogEntry {
                    id: id(index),
                    payload: Payload(payload),
                }],
            };
            alone.call(GROUP, replica_on(1), Request::Append(append)).await
        };
        let stand = async || {
            let transfer = TransferLeader {
                vote: leads,
                to: replica_on(1),
                last: None,
            };
            alone
                .call(GROUP, replica_on(1), Request::Transfer(transfer))
                .await
        };
        let mut next = 0;
        let mut take = async |payload: &dyn Fn() -> Vec<u8>| {
            while append(next, payload()).await == Response::Appended(Appended::Success) {
                if next == 0 {
                    alone.log.limit_space(Some(0));
                }
                next += 1;
                assert!(next < 20_000, "there is room");
            }
        };
        take(&|| vec![1; 30_000]).await;
        take(&|| vec![0]).await;
        assert_eq!(stand().await, Response::Refusal(Refusal::NoRoom));
        let asked = alone.call(GROUP, replica_on(1), Request::PreVote(ask(9, replica_on(2))));
        assert!(matches!(asked.await, Response::PreVoted(_)), "a vote has room");
    });
}

/// Raft has what takes tables over wait behind apply, and votes and entries behind that: one that took them
/// would answer nothing until there is room.
#[test]
fn a_replica_whose_apply_waits_takes_no_tables_and_votes() {
    const FIRST: u64 = 1;
    runtime().block_on(async {
        let device = SimDevice::new(2);
        let mut alone = Alone::adjusted(false, |options| {
            tables_on(&device, options);
            let family = &mut options.machine.db.default_family;
            family.write_buffer_bytes = 64 << 10;
            family.max_write_buffers = 2;
        })
        .await;
        device.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let id = |index| EntryId { leader, index };
        let run = RunId { leader, run: 1 };
        let put = |index: u64| {
            let mut effects = EffectsBuf::default();
            let (key, value) = (index.to_be_bytes(), &[7; 30_000][..]);
            let (slot, key) = (1, &key[..]);
            effects.push(Effect::Put { slot, key, value }).unwrap();
            let n = u32::try_from(index - FIRST + 1).unwrap();
            let header = Header {
                ticket: Ticket { run, n },
                count: 1,
                base: 0,
                stamp_ms: 1,
            };
            [&[1], &header.encode()[..], effects.bytes()].concat()
        };
        let append = async |index: u64, payload| {
            let append = Append {
                vote: Vote {
                    leader,
                    committed: true,
                },
                previous: index.checked_sub(1).map(id),
                committed: Some(id(index)),
                entries: vec![LogEntry {
                    id: id(index),
                    payload: Payload(payload),
                }],
            };
            alone.call(GROUP, replica_on(1), Request::Append(append)).await
        };
        append(0, vec![0]).await;
        let waits = || {
            let problem = alone.replica.problem();
            problem.is_some_and(|problem| problem.contains("room for its tables"))
        };
        let mut index = FIRST;
        while !waits() {
            assert!(index < 1_000, "there is room");
            let taken = append(index, put(index)).await;
            assert!(matches!(taken, Response::Appended(_)), "{taken:?}");
            index += 1;
        }
        for more in 0..20 {
            append(index + more, put(index + more)).await;
        }
        let index = index + 20;
        let ask = async |request| alone.call(GROUP, replica_on(1), request).await;
        let refused = Response::Refusal(Refusal::NoRoom);
        assert_eq!(ask(Request::Room(Room { bytes: 1 })).await, refused);
        assert!(waits());
        let request = VoteRequest {
            last: Some(id(index)),
            ..self::ask(2, replica_on(2))
        };
        let voted = tokio::time::timeout(CAP, async {
            // It heard its leader a moment ago.
            while !matches!(ask(Request::Vote(request.clone())).await, Response::Voted(answer) if answer.granted) {}
        });
        voted.await.unwrap_or_else(|_| panic!("it does not vote"));
        assert!(waits());
        device.heal();
        let applied = tokio::time::timeout(CAP, async {
            // Entries behind the first may wait for a moment, too.
            while waits() || ask(Request::Room(Room { bytes: 1 })).await != Response::HasRoom {
                tokio::task::yield_now().await;
            }
        });
        applied.await.unwrap_or_else(|_| panic!("it waits, though there is room"));
        alone.requests.close();
    });
}

/// A transfer that was cut off could not go on where it had filled half of the disk.
#[test]
fn what_came_of_a_transfer_counts_as_room_and_goes() {
    const SIZE: u64 = 400_000;
    runtime().block_on(async {
        let device = SimDevice::new(2);
        let alone = Alone::adjusted(false, |options| {
            tables_on(&device, options);
            options.times.piece = Duration::from_secs(1);
        })
        .await;
        let ask = async |request| alone.call(GROUP, replica_on(1), request).await;
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let applied = EntryId { leader, index: 9 };
        let description = Description {
            position: Position {
                applied,
                membership: None,
            },
            files: vec![Described {
                name: "file".to_owned(),
                size: SIZE,
                crc32c: 0,
            }],
        };
        let offer = Offer {
            vote: Vote {
                leader,
                committed: true,
            },
            snapshot: 1,
            last: Some(applied),
            meta: Payload(description.encode()),
            files: Vec::new(),
        };
        let wanted = ask(Request::Offer(offer)).await;
        assert!(matches!(wanted, Response::Wanted(_)), "{wanted:?}");
        let piece = Piece {
            snapshot: 1,
            file: 0,
            offset: 0,
            bytes: Payload(vec![7; SIZE as usize / 2]),
        };
        let stored = ask(Request::Piece(piece)).await;
        assert!(matches!(stored, Response::Stored(_)), "{stored:?}");
        device.limit_space(Some(SIZE * 3 / 4));
        let room = async |bytes| ask(Request::Room(Room { bytes })).await;
        assert_eq!(room(SIZE).await, Response::HasRoom);
        assert_eq!(room(SIZE * 2).await, Response::Refusal(Refusal::NoRoom));
        // Nothing more comes of it, and its disk is full.
        alone.log.limit_space(Some(0));
        for index in 0.. {
            let id = |index| EntryId { leader, index };
            let append = Append {
                vote: Vote {
                    leader,
                    committed: true,
                },
                previous: u64::checked_sub(index, 1).map(id),
                committed: None,
                entries: vec![LogEntry {
                    id: id(index),
                    payload: Payload(vec![1; 30_000]),
                }],
            };
            if ask(Request::Append(append)).await == Response::Refusal(Refusal::NoRoom) {
                break;
            }
            assert!(index < 1_000, "there is room");
        }
        let gone = tokio::time::timeout(CAP, async {
            while device.used_space() > SIZE / 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        gone.await.unwrap_or_else(|_| panic!("what came of it stays"));
    });
}

/// Its answers to the entries were late. Raft ends where it gets tables whose last entry is not the last of its log.
#[test]
fn a_replica_that_has_the_entries_takes_no_tables_for_them() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let ask = async |request| alone.call(GROUP, replica_on(1), request).await;
        let leader = LeaderId {
            term: 1,
            replica: replica_on(2),
        };
        let vote = Vote {
            leader,
            committed: true,
        };
        let id = |index| EntryId { leader, index };
        let append = Append {
            vote,
            previous: None,
            committed: None,
            entries: (0..5)
                .map(|index| LogEntry {
                    id: id(index),
                    payload: Payload(vec![1; 100]),
                })
                .collect(),
        };
        let appended = ask(Request::Append(append)).await;
        assert!(matches!(appended, Response::Appended(_)), "{appended:?}");
        let description = Description {
            position: Position {
                applied: id(3),
                membership: None,
            },
            files: vec![Described {
                name: "tables/1".to_owned(),
                size: 4,
                crc32c: 0,
            }],
        };
        let offer = Offer {
            vote,
            snapshot: 1,
            last: Some(id(3)),
            meta: Payload(description.encode()),
            files: Vec::new(),
        };
        let wanted = ask(Request::Offer(offer)).await;
        assert!(matches!(wanted, Response::Wanted(_)), "{wanted:?}");
        let ended = ask(Request::SnapshotEnd(SnapshotEnd { vote, snapshot: 1 })).await;
        assert_eq!(ended, Response::Installed(Installed { vote }));
        let state = alone.replica.state().unwrap();
        assert_eq!((state.last, state.applied, state.snapshot), (Some(4), None, None));
    });
}

/// One whose clock is off leads nothing, and gets the tables that it lacks.
#[test]
fn a_replica_that_may_not_lead_takes_tables() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let ask = async |request| alone.call(GROUP, replica_on(1), request).await;
        assert_eq!(ask(Request::Room(Room { bytes: 1 })).await, Response::HasRoom);
        assert_eq!(ask(Request::MayLead).await, Response::Ready);
        alone.replica.set_stands(false);
        assert_eq!(ask(Request::Room(Room { bytes: 1 })).await, Response::HasRoom);
        let answer = ask(Request::MayLead).await;
        assert!(
            matches!(&answer, Response::Refusal(Refusal::Failed(text)) if text.contains("does not stand")),
            "{answer:?}"
        );
    });
}

#[test]
fn only_the_replica_that_is_meant_answers() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let (here, from) = (replica_on(1), replica_on(2));
        let append = |replica| {
            Request::Append(Append {
                vote: Vote {
                    leader: LeaderId { term: 3, replica },
                    committed: true,
                },
                previous: None,
                committed: None,
                entries: Vec::new(),
            })
        };
        let unknown = Response::Refusal(Refusal::Unknown);
        assert_eq!(alone.call(GROUP, 999, append(from)).await, unknown);
        assert_eq!(alone.call(GROUP + 1, here, append(from)).await, unknown);
        for request in [
            append(77),
            Request::Vote(ask(9, 77)),
            Request::PreVote(ask(9, 77)),
        ] {
            let answer = alone.call(GROUP, here, request).await;
            assert!(
                matches!(&answer, Response::Refusal(Refusal::Failed(text)) if text.contains("speaks for")),
                "{answer:?}"
            );
        }
        let state = alone.replica.state().unwrap();
        assert_eq!(state.vote.term, 0, "it believed a replica that spoke for another");
        alone.node.remove(here).await.unwrap();
        assert_eq!(
            alone.call(GROUP, here, append(from)).await,
            Response::Refusal(Refusal::Gone)
        );
        assert!(alone.node.create(GROUP, here, 0).await.is_err());
    });
}

#[test]
fn a_replica_that_fails_again_and_again_is_quarantined() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let leader = LeaderId {
            term: 3,
            replica: replica_on(2),
        };
        let entry = |index, payload: &[u8]| LogEntry {
            id: EntryId { leader, index },
            payload: Payload(payload.to_vec()),
        };
        // The first is blank. The second has effects without a header: no replica gets past it.
        let append = Append {
            vote: Vote {
                leader,
                committed: true,
            },
            previous: None,
            committed: Some(EntryId { leader, index: 1 }),
            entries: vec![entry(0, &[0]), entry(1, &[1, 2, 3])],
        };
        let quarantined = tokio::time::timeout(CAP, async {
            loop {
                // While it is opened anew, it takes nothing.
                drop(
                    alone
                        .call(GROUP, replica_on(1), Request::Append(append.clone()))
                        .await,
                );
                match alone.replica.opened().await {
                    Err(error @ ReplicaError::Quarantined { .. }) => return error,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let error = quarantined
            .await
            .unwrap_or_else(|_| panic!("it is opened again for ever"))
            .to_string();
        assert!(error.contains("start the node again"), "{error}");
        let problem = alone.replica.problem().unwrap();
        assert!(problem.contains("is opened no more"), "{problem}");
        // The node goes on.
        assert!(
            alone
                .node
                .create(GROUP + 1, 55, 0)
                .await
                .unwrap()
                .opened()
                .await
                .is_ok()
        );
    });
}

#[test]
fn a_group_is_begun_once_by_a_node_that_is_a_member() {
    runtime().block_on(async {
        let alone = Alone::new(false).await;
        let address = alone.node.address();
        let here = members(&[(1, address), (2, address)]);
        assert!(
            alone.node.bootstrap(GROUP, here).await.is_err(),
            "it is there already"
        );
        let elsewhere = members(&[(2, address), (3, address)]);
        let refused = alone.node.bootstrap(GROUP + 1, elsewhere).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("found 0")));
        assert!(alone.node.bootstrap(GROUP + 2, BTreeMap::new()).await.is_err());
    });
}
