package placement

// Pods are pods of one kind that an object consists of.
type Pods struct {
	Spec  map[string]any
	Count int64
}

// WholePods returns the pods of the whole object.
func (o *Object) WholePods() []Pods { return o.podsFor(o.times(Share{Whole: true})) }

// podsFor returns the pods of so many replicas.
func (o *Object) podsFor(replicas int32) (out []Pods) {
	n := int64(replicas)
	if o.AtOnce > 0 && o.AtOnce < o.Replicas {
		n = (n*int64(o.AtOnce) + int64(o.Replicas) - 1) / int64(o.Replicas)
	}
	for _, p := range o.Pods {
		out = append(out, Pods{p.Spec, p.Count * n})
	}
	return out
}
