// The packet rules of every island, as libnftnl 1.2 prints what the kernel has. Made by the test that compares them: it
// prints the new text when they differ.
#pragma once

namespace isola::boundary {

inline constexpr char kGoldenRules[] = R"(
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000993a; meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 12 => reg 1; cmp eq reg 1 0x0100007f; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000993a; meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 8 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000993a; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000cd3a; meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 12 => reg 1; cmp eq reg 1 0x0100007f; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000cd3a; meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 8 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000cd3a; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000cd3a; meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 12 => reg 1; cmp eq reg 1 0x0100007f; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000cd3a; meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 8 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000cd3a; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000001; payload load 1b @ transport header + 0 => reg 1; cmp eq reg 1 0x00000003; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x0000003a; payload load 1b @ transport header + 0 => reg 1; cmp eq reg 1 0x00000001; immediate reg 0 accept;
aside: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 1b @ network header + 16 => reg 1; cmp eq reg 1 0x0000007f; notrack ; immediate reg 0 accept;
aside: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; notrack ; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x00003500; immediate reg 0 accept;
aside: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x00003500; immediate reg 0 accept;
aside: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 16 => reg 1; cmp eq reg 1 0xfeffff0a; notrack ; immediate reg 0 accept;
aside: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x6f7369fd 0x0000616c 0x00000000 0x01000000; notrack ; immediate reg 0 accept;
steer: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 1b @ network header + 16 => reg 1; cmp eq reg 1 0x0000007f; immediate reg 0 accept;
steer: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; immediate reg 0 accept;
steer: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x00003500; immediate reg 1 0x0000cd3a; redir proto_min reg 1 proto_max reg 1 flags 0x2;
steer: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x00003500; immediate reg 1 0x0000cd3a; redir proto_min reg 1 proto_max reg 1 flags 0x2;
steer: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 16 => reg 1; cmp eq reg 1 0xfeffff0a; immediate reg 0 accept;
steer: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x6f7369fd 0x0000616c 0x00000000 0x01000000; immediate reg 0 accept;
steer: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; immediate reg 1 0x0000993a; redir proto_min reg 1 proto_max reg 1 flags 0x2;
leave: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000993a; ct load status => reg 1; bitwise reg 1 = ( reg 1 & 0x00000020 ) ^ 0x00000000; cmp eq reg 1 0x00000000; reject type 1 code 0;
leave: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000cd3a; ct load status => reg 1; bitwise reg 1 = ( reg 1 & 0x00000020 ) ^ 0x00000000; cmp eq reg 1 0x00000000; reject type 1 code 0;
leave: meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000cd3a; ct load status => reg 1; bitwise reg 1 = ( reg 1 & 0x00000020 ) ^ 0x00000000; cmp eq reg 1 0x00000000; reject type 2 code 1;
leave: ct load state => reg 1; bitwise reg 1 = ( reg 1 & 0x00000008 ) ^ 0x00000000; cmp neq reg 1 0x00000000; meta load l4proto => reg 1; cmp eq reg 1 0x00000006; limit rate 100/second burst 1000 type packets flags 0x1; reject type 1 code 0;
leave: ct load state => reg 1; bitwise reg 1 = ( reg 1 & 0x00000008 ) ^ 0x00000000; cmp neq reg 1 0x00000000; meta load l4proto => reg 1; cmp eq reg 1 0x00000006; connlimit count 2048 flags 1; reject type 1 code 0;
leave: ct load state => reg 1; bitwise reg 1 = ( reg 1 & 0x00000008 ) ^ 0x00000000; cmp neq reg 1 0x00000000; meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 2 => reg 1; cmp eq reg 1 0x0000cd3a; limit rate 100/second burst 1000 type packets flags 0x1; reject type 2 code 1;
leave: ct load state => reg 1; bitwise reg 1 = ( reg 1 & 0x00000008 ) ^ 0x00000000; cmp neq reg 1 0x00000000; meta load l4proto => reg 1; cmp eq reg 1 0x00000011; payload load 2b @ transport header + 0 => reg 1; cmp eq reg 1 0x0000cd3a; limit rate 100/second burst 1000 type packets flags 0x1; reject type 2 code 1;
leave: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 1b @ network header + 16 => reg 1; cmp eq reg 1 0x0000007f; immediate reg 0 accept;
leave: meta load nfproto => reg 1; cmp eq reg 1 0x00000002; payload load 4b @ network header + 16 => reg 1; cmp eq reg 1 0xfeffff0a; immediate reg 0 accept;
leave: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x00000000 0x00000000 0x00000000 0x01000000; immediate reg 0 accept;
leave: meta load nfproto => reg 1; cmp eq reg 1 0x0000000a; payload load 16b @ network header + 24 => reg 1; cmp eq reg 1 0x6f7369fd 0x0000616c 0x00000000 0x01000000; immediate reg 0 accept;
leave: meta load l4proto => reg 1; cmp eq reg 1 0x00000006; reject type 1 code 0;
leave: reject type 2 code 1;
)";

}  // namespace isola::boundary
