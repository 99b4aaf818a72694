package etcd

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/metadata"
)

// pipe is a bidirectional stream without a network: it passes messages between the client's
// end and the server's end of one call.
type pipe[Req, Resp any] struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The queue of requests is unbounded, so that a client which sends while it is not
	// receiving cannot block a server that does the same. Clients send few and small
	// requests.
	mu       sync.Mutex
	requests []*Req
	closed   bool
	wake     chan struct{}

	responses chan *Resp
}

// responseBuffer lets a server run a little ahead of its client.
const responseBuffer = 16

// openPipe runs serve as the server's side of a new stream.
func openPipe[Req, Resp any](ctx context.Context, serve func(serverEnd[Req, Resp]) error) *pipe[Req, Resp] {
	p := &pipe[Req, Resp]{wake: make(chan struct{}, 1), responses: make(chan *Resp, responseBuffer)}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	go func() {
		err := serve(serverEnd[Req, Resp]{p})
		if err == nil {
			err = io.EOF
		}
		p.cancel(err)
	}()
	return p
}

// The client's end: the methods of the generated stream clients.

func (p *pipe[Req, Resp]) Send(r *Req) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil || p.closed {
		return io.EOF // as gRPC: Recv returns the reason
	}
	p.requests = append(p.requests, r)
	p.notify()
	return nil
}

func (p *pipe[Req, Resp]) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe[Req, Resp]) Recv() (*Resp, error) {
	select {
	case r := <-p.responses:
		return r, nil
	default:
	}
	select {
	case r := <-p.responses:
		return r, nil
	case <-p.ctx.Done():
	}
	// Responses sent before the end are still delivered.
	select {
	case r := <-p.responses:
		return r, nil
	default:
		return nil, p.endError()
	}
}

func (p *pipe[Req, Resp]) endError() error {
	err := context.Cause(p.ctx)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return toStatus(err)
}

func (p *pipe[Req, Resp]) CloseSend() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.notify()
	return nil
}

func (p *pipe[Req, Resp]) Context() context.Context     { return p.ctx }
func (p *pipe[Req, Resp]) Header() (metadata.MD, error) { return nil, nil }
func (p *pipe[Req, Resp]) Trailer() metadata.MD         { return nil }
func (p *pipe[Req, Resp]) SendMsg(m any) error          { return p.Send(m.(*Req)) }

func (p *pipe[Req, Resp]) RecvMsg(m any) error {
	r, err := p.Recv()
	if err == nil {
		*m.(*Resp) = *r
	}
	return err
}

// serverEnd is the server's end.
type serverEnd[Req, Resp any] struct{ p *pipe[Req, Resp] }

func (s serverEnd[Req, Resp]) Context() context.Context { return s.p.ctx }

func (s serverEnd[Req, Resp]) Send(r *Resp) error {
	select {
	case s.p.responses <- r:
		return nil
	case <-s.p.ctx.Done():
		return s.p.endError()
	}
}

func (s serverEnd[Req, Resp]) Recv() (*Req, error) {
	for {
		if r, err := s.next(); r != nil || err != nil {
			return r, err
		}
		select {
		case <-s.p.wake:
		case <-s.p.ctx.Done():
			return nil, s.p.endError()
		}
	}
}

func (s serverEnd[Req, Resp]) next() (*Req, error) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) == 0 {
		if p.closed {
			return nil, io.EOF
		}
		return nil, nil
	}
	r := p.requests[0]
	p.requests[0] = nil
	p.requests = p.requests[1:]
	return r, nil
}
