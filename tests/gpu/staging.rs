//! Establishes that data that is copied to a device and back in pieces, through pinned buffers, arrives whole, wherever pieces end.

use crate::on_a_device::on_a_device;
use blco::internals::backend::cuda::driver::{Memory, Staging};
use blco::internals::sys::Sys;

#[test]
fn pieces_arrive_whole_wherever_they_end() {
    on_a_device(module_path!(), "pieces_arrive_whole_wherever_they_end", |device| {
        for (buffers, piece, bytes) in
            [(1, 4096, 10 * 4096), (3, 4096, 1), (2, 8192, 50_001), (4, 1 << 22, (9 << 20) + 3)]
        {
            let mut staging = Staging::new(device, &Sys::default(), buffers, piece).unwrap();
            let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            let data: Vec<u8> = (0..bytes as u64).map(byte).collect();
            let memory: Memory = device.memory(bytes + 64).unwrap();
            // Twice, because buffers return in another order.
            for round in 0..2u8 {
                let sent: Vec<u8> = data.iter().map(|x| x ^ round).collect();
                staging.write(&memory, &sent).unwrap();
                let (mut plain, mut staged) = (vec![0xa5; bytes], vec![0x5a; bytes]);
                memory.read(&mut plain).unwrap();
                staging.read(&memory, &mut staged).unwrap();
                assert!(plain == sent && staged == sent, "{buffers} buffers of {piece}, {bytes} bytes");
            }
        }
    });
}
