package system

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Pull ends a part as a power cut would: a member and, with it, the server of
// Atoll that belongs to it; or a server alone. Everything else goes on.
func (s *System) Pull(part string) error {
	i, err := s.find(part)
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	s.mu.Lock()
	cluster := s.members[part]
	delete(s.members, part) // from here on its end is no surprise
	s.mu.Unlock()
	server := i >= 0 && s.KillServer(i)
	if cluster != nil {
		cluster.Kill()
	}
	if !server && cluster == nil {
		return fmt.Errorf("pull %s: it does not run: start it again with return", part)
	}
	return nil
}

// Return starts again what of a part does not run, and returns when it is ready.
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
		return fmt.Errorf("return %s: it runs", part)
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

// find gives the server that a part is, or that belongs to it, or -1 if none does.
func (s *System) find(part string) (server int, err error) {
	if i := slices.Index(s.Servers(), part); i >= 0 {
		return i, nil
	}
	known, err := s.Known()
	if err != nil {
		return 0, err
	}
	if !slices.Contains(known, part) {
		return 0, fmt.Errorf("there is no %q here: name one of %s", part, strings.Join(append(known, s.Servers()...), ", "))
	}
	return s.serverOf(part), nil
}
