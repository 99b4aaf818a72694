// Package tunnel connects Atoll with clusters that it cannot reach. The syncer of a cluster in mode Pull opens a connection to
// any server, which sends HTTP requests for the cluster's API through it. The syncer decides which of them it passes on, and
// does so with its own credential: Atoll has none of the cluster.
package tunnel

import (
	"io"
	"net"
	"time"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/yamux"
)

// protocol is the WebSocket subprotocol of a tunnel: binary messages are the bytes of a yamux session, in which each stream,
// opened by the server, is one connection of HTTP/1.1. Load balancers that know HTTP pass WebSockets on.
const protocol = "v1.tunnel.fleet.atoll.dev"

// peerProtocol is that of one stream, between two servers.
const peerProtocol = "v1.stream.fleet.atoll.dev"

const (
	// handshakeTimeout bounds how long a connection may take to become a tunnel.
	handshakeTimeout = 15 * time.Second
	// pingInterval and pingTimeout are how soon both ends notice that the connection is lost, although nothing is sent.
	pingInterval = 10 * time.Second
	pingTimeout  = 10 * time.Second
	// maxStreams bounds the requests that one tunnel transports at a time.
	maxStreams = 1000
	// maxMessageBytes bounds a message: a frame of yamux fits into the window of its stream.
	maxMessageBytes = 1 << 20
	bufferBytes     = 4 << 10
	// readBufferBytes is small, because each tunnel keeps one: yamux reads in larger parts, which bypass it.
	readBufferBytes = 512
)

func yamuxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.KeepAliveInterval, cfg.ConnectionWriteTimeout = pingInterval, pingTimeout
	cfg.LogOutput = io.Discard // what ends a session is logged where the session is used
	return cfg
}

// wsConn is a WebSocket as a connection: the boundaries of its messages have no meaning.
type wsConn struct {
	*websocket.Conn
	message io.Reader // the one that is being read
}

func newConn(ws *websocket.Conn) net.Conn {
	ws.SetReadLimit(maxMessageBytes)
	return &wsConn{Conn: ws}
}

// Read implements net.Conn.
func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			kind, message, err := c.NextReader()
			if err != nil {
				return 0, endOfStream(err)
			}
			if kind != websocket.BinaryMessage {
				continue
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if err == io.EOF {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// endOfStream makes the message with which the other end closes a WebSocket the end of the connection.
func endOfStream(err error) error {
	if websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
		return io.EOF
	}
	return err
}

// Write implements net.Conn.
func (c *wsConn) Write(p []byte) (int, error) {
	const most = maxMessageBytes / 2
	for written := 0; ; {
		part := p[written:min(len(p), written+most)]
		if err := c.WriteMessage(websocket.BinaryMessage, part); err != nil {
			return written, err
		}
		if written += len(part); written == len(p) {
			return written, nil
		}
	}
}

// Close implements net.Conn.
func (c *wsConn) Close() error {
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	return c.Conn.Close()
}

// SetDeadline implements net.Conn.
func (c *wsConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
