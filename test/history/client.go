package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/atoll-dev/atoll/kv"
)

// Keys is the number of keys in a history: few, so that clients conflict.
const Keys = 6

// Client makes random calls, one after the other.
type Client struct {
	recorder *Recorder
	id       int
	chance   *rand.Rand
	writes   int
	// The ModRevision last seen of each key, 0 if it did not exist, and the newest revision seen.
	// Swap and Past use them.
	seen   map[string]kv.Revision
	newest kv.Revision
}

// NewClient returns a client whose calls depend on the seed and on its answers.
func (r *Recorder) NewClient(id int, seed uint64) *Client {
	return &Client{recorder: r, id: id, chance: rand.New(rand.NewPCG(seed, uint64(id))), seen: map[string]kv.Revision{}}
}

// Step makes one call to a server.
func (c *Client) Step(ctx context.Context, server string, ks kv.Keyspace) *Call {
	call := c.next()
	call.Client, call.Server = c.id, server
	c.recorder.do(ctx, ks, call)
	if call.Outcome == Answered {
		c.learn(call)
	}
	return call
}

// List reads all keys.
func (c *Client) List(ctx context.Context, server string, ks kv.Keyspace) *Call {
	call := &Call{Client: c.id, Server: server, Kind: List}
	c.recorder.do(ctx, ks, call)
	return call
}

func (c *Client) next() *Call {
	kind := List
	for n := c.chance.IntN(100); ; {
		// Percentages of Put, Pair, Swap, Delete, Get, List, Past.
		for k, percent := range [...]int{18, 8, 27, 11, 14, 14, 8} {
			if n < percent {
				kind = Kind(k)
				break
			}
			n -= percent
		}
		break
	}
	if kind == Past && c.newest < 2 {
		kind = List
	}
	call := &Call{Kind: kind}
	switch kind {
	case List:
	case Past:
		call.Expect = max(1, c.newest-c.chance.Int64N(20))
	case Pair:
		a, b := c.chance.IntN(Keys), c.chance.IntN(Keys-1)
		if b >= a {
			b++
		}
		call.Keys = []string{Key(a), Key(b)}
	default:
		call.Keys = []string{Key(c.chance.IntN(Keys))}
	}
	if kind == Swap {
		call.Expect = c.seen[call.Keys[0]]
	}
	if kind.writes() && kind != Delete {
		c.writes++
		call.Value = fmt.Sprintf("%d/%d", c.id, c.writes)
		if c.chance.IntN(10) == 0 {
			call.Value += strings.Repeat("/", c.chance.IntN(4000))
		}
	}
	return call
}

func (c *Client) learn(call *Call) {
	c.newest = max(c.newest, call.Revision)
	switch {
	case call.Changed:
		for _, k := range call.Keys {
			c.seen[k] = call.Revision
			if call.Kind == Delete {
				c.seen[k] = 0
			}
		}
	case call.Kind == Past:
	default:
		keys := call.Keys
		if call.Kind == List {
			keys = nil
			for n := range Keys {
				keys = append(keys, Key(n))
			}
		}
		for _, k := range keys {
			c.seen[k] = 0
		}
		for _, found := range call.Found {
			c.seen[string(found.Key)] = found.ModRevision
		}
	}
}
