package statefile

import (
	"slices"
	"strings"
)

// maxEach is how many instances of one configuration an object depends on individually. A state
// file only records dependencies between configurations: a thousand instances on each of a thousand
// would be a million.
const maxEach = 64

// maxDependsOn limits depends_on: infra/expr accepts 1,000 expressions in one object, of which
// maxReferences may be references.
const maxDependsOn = 490

// An instanceIndex has the instances of a configuration by the instance of the outer modules that
// contains them.
type instanceIndex struct {
	all   map[string][]int32
	byKey map[string]int32
}

// possibleDependencies returns the instances of a configuration that an instance may depend on.
// Resources in the same module call depend on each other within the same instance of the module.
func (s *survey) possibleDependencies(of *configResource, from *resourceInstance) (all []int32, sameKey int32) {
	shared := 0
	for shared < min(len(of.module), len(from.module)) && of.module[shared].Name == from.module[shared].Name {
		shared++
	}
	p := of.indexes[shared]
	if p == nil {
		p = &instanceIndex{all: map[string][]int32{}, byKey: map[string]int32{}}
		for _, at := range of.instances {
			one := s.instances[at]
			where := moduleText(one.module[:shared])
			p.all[where] = append(p.all[where], at)
			p.byKey[where+"."+one.key.String()] = at
		}
		if of.indexes == nil {
			of.indexes = map[int]*instanceIndex{}
		}
		of.indexes[shared] = p
	}
	where := moduleText(from.module[:shared])
	all = p.all[where]
	if len(all) == 0 {
		// The module depends on itself by way of its caller, so it may be any instance.
		all = of.instances
	}
	sameKey = -1
	if at, ok := p.byKey[where+"."+from.key.String()]; ok && from.key.Kind != NoKey {
		sameKey = at
	}
	return all, sameKey
}

// direct returns the direct dependencies of a configuration. A state file lists the transitive ones
// as well.
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
			// If two depend on each other, each would hide the other.
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

// A dependencySet has the dependencies of one instance.
type dependencySet struct {
	// states are those to record in the ResourceState, dependsOn those to list in depends_on.
	states, dependsOn []*resourceInstance
	// unadopted has the addresses of configurations without an instance to name, and omitted counts
	// those of them that have instances.
	unadopted []string
	omitted   int
}

// resolve determines the dependencies of an instance. Found are the instances that its arguments
// refer to.
func (s *survey) resolve(from *resourceInstance, dependencies []string, found map[int32]bool) dependencySet {
	var out dependencySet
	var beyond []*resourceInstance
	direct := s.direct(from.config)
	byConfig := map[int32][]int32{}
	for at := range found {
		id := s.instances[at].config
		byConfig[id] = append(byConfig[id], at)
	}
	for _, address := range dependencies {
		id, ok := s.configured[address]
		if !ok || len(s.configs[id].instances) == 0 {
			out.unadopted = append(out.unadopted, address)
			continue
		}
		of := s.configs[id]
		chosen, referred := byConfig[id], true
		if len(chosen) == 0 {
			referred = false
			var same int32
			if chosen, same = s.possibleDependencies(of, from); len(chosen) > maxEach {
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
			if !one.typ.data {
				out.states = append(out.states, one)
				named = true
			}
			switch {
			case referred:
			case slices.Contains(direct, id):
				out.dependsOn = append(out.dependsOn, one)
			case len(chosen) > 1:
				// The resource in between depends on some of them, perhaps on others.
				beyond = append(beyond, one)
			}
		}
		if !named {
			out.unadopted = append(out.unadopted, address)
			if len(chosen) == 0 && id != from.config {
				out.omitted++
			}
		}
	}
	for _, list := range [][]*resourceInstance{out.dependsOn, beyond} {
		slices.SortFunc(list, func(a, b *resourceInstance) int { return strings.Compare(reference(a), reference(b)) })
	}
	out.dependsOn = append(out.dependsOn, beyond...)
	if more := len(out.dependsOn) - maxDependsOn; more > 0 {
		out.omitted += more
		out.dependsOn = out.dependsOn[:maxDependsOn]
	}
	return out
}
