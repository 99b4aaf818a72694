package adopt

import (
	"slices"
	"strings"
)

// mostEach is how many instances of one configuration an object waits for one by one. A state file says only on which
// configurations an instance depends: a thousand instances on each of a thousand would be a million.
const mostEach = 64

// mostWritten is how many objects depends_on lists at most: infra/reference takes 1,000 expressions in one object, of
// which mostExpressions may be references.
const mostWritten = 490

// pools are the instances of a config, by the instance of the outer modules in which they are.
type pools struct {
	all   map[string][]int32
	byKey map[string]int32
}

// pool gives the instances of a config that an instance may have been made from: what is within the same call of a module is
// within the same instance of it.
func (s *survey) pool(of *config, from *known) (all []int32, sameKey int32) {
	shared := 0
	for shared < min(len(of.module), len(from.module)) && of.module[shared].Name == from.module[shared].Name {
		shared++
	}
	p := of.pools[shared]
	if p == nil {
		p = &pools{all: map[string][]int32{}, byKey: map[string]int32{}}
		for _, at := range of.instances {
			one := s.instances[at]
			where := moduleText(one.module[:shared])
			p.all[where] = append(p.all[where], at)
			p.byKey[where+"."+one.key.String()] = at
		}
		if of.pools == nil {
			of.pools = map[int]*pools{}
		}
		of.pools[shared] = p
	}
	where := moduleText(from.module[:shared])
	all = p.all[where]
	if len(all) == 0 {
		// A module can only refer to itself by way of what calls it: then it may be any.
		all = of.instances
	}
	sameKey = -1
	if at, ok := p.byKey[where+"."+from.key.String()]; ok && from.key.Kind != NoKey {
		sameKey = at
	}
	return all, sameKey
}

// direct are the configs that a config depends on and does not reach by way of others: a state file lists all.
func (s *survey) direct(id int32) []int32 {
	c := s.configs[id]
	if c.directed {
		return c.direct
	}
	c.directed = true
	s.stamp++
	for _, other := range c.on {
		if other == id {
			continue
		}
		for _, further := range s.configs[other].on {
			// Two that depend on each other would each hide the other.
			if _, mutual := slices.BinarySearch(s.configs[further].on, other); further != other && !mutual {
				s.stamps[further] = s.stamp
			}
		}
	}
	for _, other := range c.on {
		if other != id && s.stamps[other] != s.stamp {
			c.direct = append(c.direct, other)
		}
	}
	return c.direct
}

// order is what one instance waits for.
type order struct {
	// states it was made from; written are those that depends_on has to list.
	states, written []*known
	// left are addresses of configurations of which no instance can be named, and loose those of them that have some.
	left  []string
	loose int
}

// order decides it. Found are the instances that its arguments refer to.
func (s *survey) order(from *known, dependencies []string, found map[int32]bool) order {
	var out order
	var beyond []*known
	direct := s.direct(from.config)
	byConfig := map[int32][]int32{}
	for at := range found {
		id := s.instances[at].config
		byConfig[id] = append(byConfig[id], at)
	}
	for _, address := range dependencies {
		id, ok := s.configured[address]
		if !ok || len(s.configs[id].instances) == 0 {
			out.left = append(out.left, address)
			continue
		}
		of := s.configs[id]
		chosen, referred := byConfig[id], true
		if len(chosen) == 0 {
			referred = false
			var same int32
			if chosen, same = s.pool(of, from); len(chosen) > mostEach {
				chosen = nil
				if same >= 0 {
					chosen = []int32{same}
				}
			}
		}
		if id == from.config {
			// Instances of one configuration cannot depend on each other.
			chosen = nil
		}
		slices.Sort(chosen)
		named := false
		for _, at := range chosen {
			one := s.instances[at]
			if !one.kind.data {
				out.states = append(out.states, one)
				named = true
			}
			switch {
			case referred:
			case slices.Contains(direct, id):
				out.written = append(out.written, one)
			case len(chosen) > 1:
				// What lies between waits for some of them, maybe for others.
				beyond = append(beyond, one)
			}
		}
		if !named {
			out.left = append(out.left, address)
			if len(chosen) == 0 && id != from.config {
				out.loose++
			}
		}
	}
	for _, list := range [][]*known{out.written, beyond} {
		slices.SortFunc(list, func(a, b *known) int { return strings.Compare(reference(a), reference(b)) })
	}
	out.written = append(out.written, beyond...)
	if more := len(out.written) - mostWritten; more > 0 {
		out.loose += more
		out.written = out.written[:mostWritten]
	}
	return out
}
