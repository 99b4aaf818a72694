package system

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
)

// realNodes are the nodes of all members, and their networks.
type realNodes struct {
	images []string

	mu       sync.Mutex
	networks map[string]*node.Network // by the names of members
	nodes    map[string]*node.Node
}

// Network returns the network of a member with a real node, or nil.
func (s *System) Network(member string) *node.Network {
	if s.real == nil {
		return nil
	}
	s.real.mu.Lock()
	defer s.real.mu.Unlock()
	return s.real.networks[member]
}

// network returns the network of a member, and creates it if necessary. It stays until close.
func (r *realNodes) network(dir, name string) (*node.Network, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.networks[name]; ok {
		return n, nil
	}
	n, err := node.NewNetwork(dir, name)
	if err == nil {
		r.networks[name] = n
	}
	return n, err
}

// isolate puts a member into a network of its own, from which it reaches its store by a socket.
func (s *System) isolate(ctx context.Context, cfg *member.Config) error {
	network, err := s.real.network(cfg.Dir, cfg.Name)
	if err != nil {
		return err
	}
	cfg.Address, cfg.Wrapper, cfg.RealNodes = network.Inside.String(), network.Wrapper(), true
	cfg.Store, err = s.store.ServeSocket(ctx, cfg.Name, filepath.Join(s.dir, cfg.Name+".sock"))
	return err
}

// startNode starts the node of a member that runs, and reports an unexpected exit.
func (s *System) startNode(ctx context.Context, cluster *member.Cluster, dir string) error {
	name := cluster.Name + "-1"
	network := s.Network(cluster.Name)
	files, err := cluster.Keys.MakeNode(filepath.Join(dir, "pki", "node"), name, network.Inside)
	if err != nil {
		return err
	}
	n, err := node.Start(ctx, node.Config{
		Name: name, Region: cluster.Name, Zone: cluster.Name + "-a",
		Dir: filepath.Join(dir, "node"), LogFile: s.logFile(name), Network: network,
		Server: cluster.Server, CA: cluster.Keys.CACert,
		ClientCert: files.ClientCert, ClientKey: files.ClientKey, ServerCert: files.ServerCert, ServerKey: files.ServerKey,
		Images: s.real.images, Progress: func(step string) { s.progress(cluster.Name, step) },
	})
	if err != nil {
		return err
	}
	s.real.mu.Lock()
	s.real.nodes[cluster.Name] = n
	s.real.mu.Unlock()
	go func() {
		<-n.Done()
		s.real.mu.Lock()
		unexpected := s.real.nodes[cluster.Name] == n
		s.real.mu.Unlock()
		if unexpected && n.Err() != nil {
			s.report(name, n.Err())
		}
	}()
	return nil
}

// take returns the node of a member and forgets it: its exit is expected then.
func (r *realNodes) take(member string) *node.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[member]
	delete(r.nodes, member)
	return n
}

// kill ends the node of a member like a power cut.
func (r *realNodes) kill(member string) {
	if n := r.take(member); n != nil {
		n.Kill()
	}
}

// close stops all nodes, and removes the networks.
func (r *realNodes) close() error {
	r.mu.Lock()
	nodes, networks := r.nodes, r.networks
	r.nodes, r.networks = map[string]*node.Node{}, map[string]*node.Network{}
	r.mu.Unlock()
	stopped := make(chan error)
	for _, n := range nodes {
		go func() { stopped <- n.Stop() }()
	}
	var errs []error
	for range nodes {
		errs = append(errs, <-stopped)
	}
	for _, n := range networks {
		errs = append(errs, n.Remove())
	}
	return errors.Join(errs...)
}
