//! The other process.

use std::process::{Child, Command};

use tensor_channel::{ChannelError, Descriptor, Ends, LinkSpec, Segments, Tag, attach};

use crate::{PATIENCE, link};

/// What the other process does with what it gets.
#[derive(Clone, Copy)]
pub enum Task {
    /// Answers each message.
    Echo,
    /// Answers after so many messages.
    Count(usize),
}

/// What stands on the other process's command line.
pub struct Order {
    task: Task,
    link: LinkSpec,
    descriptor: Descriptor,
}

/// The other process, running.
pub struct Peer(Child);

impl Peer {
    pub fn start(task: Task, descriptor: &Descriptor, link: &LinkSpec) -> Self {
        let messages = match task {
            Task::Echo => 0,
            Task::Count(messages) => messages,
        };
        let numbers = [messages, link.outbound.row_len, link.inbound.row_len];
        let mut words: Vec<String> = vec!["peer".to_owned()];
        words.extend(numbers.map(|number| number.to_string()));
        match descriptor {
            Descriptor::Shm(Segments {
                inbound,
                outbound,
                generation,
            }) => words.extend([inbound.clone(), outbound.clone(), generation.to_string()]),
            Descriptor::Device { .. } => panic!("no device here"),
            Descriptor::Tcp { address, secret } => {
                words.extend([address.clone(), u128::from_le_bytes(*secret).to_string()])
            }
        }
        let program = std::env::current_exe().expect("a program has a path");
        let child = Command::new(program).args(words).spawn();
        Self(child.expect("the program starts again"))
    }

    /// Waits for its end; it must not have failed.
    pub fn finish(mut self) {
        let status = self.0.wait().expect("the peer ends");
        assert!(status.success(), "the peer failed: {status}");
    }
}

/// The order on this command line, if this is the other process.
pub fn task(arguments: &[String]) -> Option<Order> {
    let number = |word: &String| word.parse::<usize>().expect("a number");
    let [first, messages, there, back, descriptor @ ..] = arguments else {
        return None;
    };
    if first != "peer" {
        return None;
    }
    let descriptor = match descriptor {
        [inbound, outbound, generation] => Descriptor::Shm(Segments {
            inbound: inbound.clone(),
            outbound: outbound.clone(),
            generation: generation.parse().expect("a number"),
        }),
        [address, secret] => Descriptor::Tcp {
            address: address.clone(),
            secret: secret.parse::<u128>().expect("a number").to_le_bytes(),
        },
        other => panic!("{other:?} is no descriptor"),
    };
    Some(Order {
        task: match number(messages) {
            0 => Task::Echo,
            messages => Task::Count(messages),
        },
        link: link(number(there), number(back)),
        descriptor,
    })
}

/// Carries an order out until the other side closes.
pub fn run(order: &Order) {
    let mut ends = attach(&order.descriptor, order.link, PATIENCE, None).expect("the offer stands");
    let every = match order.task {
        Task::Echo => 1,
        Task::Count(messages) => messages,
    };
    while receive_all(&mut ends, every) {
        let answer = vec![2; order.link.inbound.slot_bytes()];
        ends.sender
            .send(Tag::default(), &answer, PATIENCE)
            .expect("the other side reads");
    }
}

/// Receives so many messages; false: the other side closed.
fn receive_all(ends: &mut Ends, messages: usize) -> bool {
    let mut room = vec![0; ends.receiver.spec().slot_bytes()];
    for _ in 0..messages {
        match ends.receiver.receive(&mut room, PATIENCE) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("nothing came in time"),
            Err(ChannelError::PeerGone { .. }) => return false,
            Err(other) => panic!("{other}"),
        }
    }
    true
}
