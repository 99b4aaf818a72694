package system

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Pull ends a part like a power cut. A part is a member with the server of Atoll that belongs to it,
// or a server alone. All other parts keep running.
func (s *System) Pull(part string) error {
	i, err := s.find(part)
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	s.mu.Lock()
	cluster := s.members[part]
	delete(s.members, part) // watchMember must not report its exit
	s.mu.Unlock()
	server := i >= 0 && s.KillServer(i)
	if cluster != nil {
		if s.real != nil {
			s.real.kill(part)
		}
		cluster.Kill()
	}
	if !server && cluster == nil {
		return fmt.Errorf("pull %s: it is not running: start it with return", part)
	}
	return nil
}

// Return starts the processes of a part that are not running, and returns when they are ready.
func (s *System) Return(ctx context.Context, part string) error {
	i, err := s.find(part)
	if err != nil {
		return fmt.Errorf("return: %w", err)
	}
	s.mu.Lock()
	server := i >= 0 && s.atolls[i] == nil
	cluster := !slices.Contains(s.Servers(), part) && s.members[part] == nil
	s.mu.Unlock()
	if !server && !cluster {
		return fmt.Errorf("return %s: it is already running", part)
	}
	group, ctx := errgroup.WithContext(ctx)
	if server {
		group.Go(func() error { return s.StartServer(ctx, i) })
	}
	if cluster {
		group.Go(func() error {
			_, err := s.StartMember(ctx, part)
			return err
		})
	}
	return group.Wait()
}

// find returns the index of the server with that name, or of the member's server. It is -1 if the
// member has none.
func (s *System) find(part string) (server int, err error) {
	if i := slices.Index(s.Servers(), part); i >= 0 {
		return i, nil
	}
	known, err := s.MemberNames()
	if err != nil {
		return 0, err
	}
	if !slices.Contains(known, part) {
		return 0, fmt.Errorf("no part %q: use one of %s", part, strings.Join(append(known, s.Servers()...), ", "))
	}
	return s.serverOf(part), nil
}
