// Package sourcetest is the conformance suite for a [consumer.Source]. Run it if you write a source. Each case is one
// sentence of the Source's contract, and says why it exists when it fails.
//
//	func TestSource_Conforms(t *testing.T) {
//		sourcetest.Run(t, func(t *testing.T) sourcetest.Subject {
//			b := newBroker(t) // with an empty topic
//			return sourcetest.Subject{Topic: "orders", Open: b.source, Publish: b.publish, Left: b.left}
//		})
//	}
//
// If the broker lives in this process, test its source in virtual time, with [RunVirtual]. A source promises all that
// Subject.Lacks does not name. Cases for what it lacks, and for faults that the Subject cannot make, are skipped and
// say so. A report at the end lists which cases passed.
//
// # Guarantees
//
//   - Cases wait for what must come, and no longer. A slow machine does not make one fail.
//   - The suite is tested with sources that break one rule each. It must reject each by the case of that rule.
//
// # What it does not guarantee
//
// It looks at one topic and a few members. Test the rest yourself: settings that cannot work, large messages, rights,
// and what your broker does over days.
package sourcetest
