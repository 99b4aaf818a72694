package postgres

import (
	"net"
	"strings"
	"syscall"
	"time"
)

// peerLimit is how long a database's machine may not acknowledge what it was sent. A
// statement may take longer, because it is the machine's kernel that acknowledges. But
// where packets get lost and nobody says so, the kernel here would try ever more
// rarely, for a quarter of an hour, and after the network is back a statement would go
// on waiting for as long again as it has been away.
const peerLimit = 6 * time.Second

// newDialer makes connections that end when their peer is silent.
func newDialer() *net.Dialer {
	return &net.Dialer{
		// For connections on which nothing is under way.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: peerLimit / 2, Interval: peerLimit / 6, Count: 3},
		// For those on which something is.
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var failed error
			if err := c.Control(func(fd uintptr) { failed = limitUnacknowledged(fd, peerLimit) }); err != nil {
				return err
			}
			return failed
		},
	}
}
