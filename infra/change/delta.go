package change

// Delta is the difference of two values, with those of the values within. Both the stored and the
// rendered form of a change are made from it.
type Delta struct {
	// sign is '+', '-', '~', or ' ' if nothing changes.
	Sign          byte
	Path          string
	Name          string // name of an attribute, or key in a map
	Before, After *Node
	// children are the differences within. A '~' has children only if both values are lists or both
	// are objects.
	Children []*Delta
}

// Compare compares two values. It returns nil if both are null.
func Compare(before, after *Node, path string) *Delta {
	if before.IsNull() && after.IsNull() {
		return nil
	}
	d := &Delta{Before: before, After: after, Path: path}
	switch {
	case before.IsNull():
		d.Sign = '+'
	case after.IsNull():
		d.Sign = '-'
	case before.equal(after):
		d.Sign = ' '
	default:
		d.Sign = '~'
	}
	kind := before
	if before.IsNull() || d.Sign == '~' && after.Kind == UnknownNode {
		kind = after
	}
	if d.Sign == '~' && before.Kind != after.Kind {
		if after.Kind == UnknownNode && (before.Kind == ListNode || before.Kind == ObjectNode) {
			// Show the prior value once more.
			d.Children = Compare(before, before, path).Children
		}
		return d
	}
	switch kind.Kind {
	case ObjectNode:
		d.diffMembers()
	case ListNode:
		d.diffElements()
	}
	return d
}

// diffMembers compares by name. Names are sorted on both sides.
func (d *Delta) diffMembers() {
	var names [2][]string
	var of [2][]*Node
	for i, n := range []*Node{d.Before, d.After} {
		if !n.IsNull() {
			names[i], of[i] = n.names, n.Children
		}
	}
	shape := d.After
	if d.After.IsNull() {
		shape = d.Before
	}
	d.Children = make([]*Delta, 0, max(len(names[0]), len(names[1])))
	for i, j := 0, 0; i < len(names[0]) || j < len(names[1]); {
		var name string
		var before, after *Node
		switch {
		case j >= len(names[1]) || i < len(names[0]) && names[0][i] < names[1][j]:
			name, before, i = names[0][i], of[0][i], i+1
		case i >= len(names[0]) || names[1][j] < names[0][i]:
			name, after, j = names[1][j], of[1][j], j+1
		default:
			name, before, after, i, j = names[0][i], of[0][i], of[1][j], i+1, j+1
		}
		if one := Compare(before, after, shape.memberPath(d.Path, name)); one != nil {
			one.Name = name
			d.Children = append(d.Children, one)
		}
	}
}

// diffElements pairs equal elements in order, so that an element inserted at the front does not
// make all others look changed. Between equal elements, objects are compared pairwise; other values
// are removed and added.
func (d *Delta) diffElements() {
	var before, after []*Node
	set := false
	if !d.Before.IsNull() {
		before, set = d.Before.Children, d.Before.Shape.IsSet()
	}
	if !d.After.IsNull() {
		after, set = d.After.Children, d.After.Shape.IsSet()
	}
	i, j := 0, 0
	upTo := func(m, n int) {
		for !set && i < m && j < n && before[i].Kind == ObjectNode && after[j].Kind == ObjectNode {
			d.addElement(before[i], after[j], j)
			i, j = i+1, j+1
		}
		for ; i < m; i++ {
			d.addElement(before[i], nil, i)
		}
		for ; j < n; j++ {
			d.addElement(nil, after[j], j)
		}
	}
	for _, pair := range matchEqual(before, after) {
		upTo(pair[0], pair[1])
		d.addElement(before[i], after[j], j)
		i, j = i+1, j+1
	}
	upTo(len(before), len(after))
}

// addElement appends the difference of one element, even if the element is null.
func (d *Delta) addElement(before, after *Node, at int) {
	path := elementPath(d.Path, at)
	one := Compare(before, after, path)
	if one == nil {
		one = &Delta{Sign: ' ', Path: path, Before: before, After: after}
		if before == nil {
			one.Sign = '+'
		} else if after == nil {
			one.Sign = '-'
		}
	}
	d.Children = append(d.Children, one)
}

// maxCells bounds the table of the longest common subsequence. Beyond it, elements in the middle
// are paired by position.
const maxCells = 1 << 20

// matchEqual pairs as many equal elements as possible, in ascending order on both sides.
func matchEqual(a, b []*Node) [][2]int {
	var head, tail [][2]int
	start, endA, endB := 0, len(a), len(b)
	for start < endA && start < endB && a[start].equal(b[start]) {
		head = append(head, [2]int{start, start})
		start++
	}
	for endA > start && endB > start && a[endA-1].equal(b[endB-1]) {
		endA, endB = endA-1, endB-1
		tail = append(tail, [2]int{endA, endB})
	}
	head = append(head, longestCommonSubsequence(a[start:endA], b[start:endB], start)...)
	for i := len(tail) - 1; i >= 0; i-- {
		head = append(head, tail[i])
	}
	return head
}

func longestCommonSubsequence(a, b []*Node, offset int) [][2]int {
	var out [][2]int
	if len(a)*len(b) > maxCells {
		for i := 0; i < len(a) && i < len(b); i++ {
			if a[i].equal(b[i]) {
				out = append(out, [2]int{offset + i, offset + i})
			}
		}
		return out
	}
	width := len(b) + 1
	table := make([]int32, (len(a)+1)*width) // lengths for the suffixes that start at i and j
	same := make([]bool, len(a)*len(b))
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if same[i*len(b)+j] = a[i].equal(b[j]); same[i*len(b)+j] {
				table[i*width+j] = table[(i+1)*width+j+1] + 1
			} else {
				table[i*width+j] = max(table[(i+1)*width+j], table[i*width+j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case same[i*len(b)+j]:
			out = append(out, [2]int{offset + i, offset + j})
			i, j = i+1, j+1
		case table[(i+1)*width+j] >= table[i*width+j+1]:
			i++
		default:
			j++
		}
	}
	return out
}

// each visits the smallest meaningful differences. A value that is added or removed is one
// difference, whatever it contains. The resource itself is not visited. within is the chain of
// enclosing differences.
func (d *Delta) each(within []*Delta, visit func(within []*Delta, d *Delta)) {
	switch {
	case d == nil || d.Sign == ' ':
	case d.Path == "" || d.Sign == '~' && len(d.Children) > 0 && d.After.Kind != UnknownNode:
		within = append(within, d)
		for _, one := range d.Children {
			one.each(within, visit)
		}
	default:
		visit(within, d)
	}
}

// specPath returns the path in the object's spec at which a value is configured. A block type that
// allows several blocks accepts a single one as an object: alone is the path for that form, without
// the index of the only list element. known is false within a set of several elements, because the
// original position of a set's element is lost.
func specPath(within []*Delta, d *Delta) (at, alone string, known bool) {
	for i, in := range within {
		one := d
		if i+1 < len(within) {
			one = within[i+1]
		}
		step := one.Name
		switch {
		case in.After.Kind == ListNode && len(in.After.Children) == 1:
			at += one.Path[len(in.Path):]
			continue
		case in.After.Kind == ListNode && in.After.Shape.IsSet():
			return "", "", false
		case in.After.Kind == ListNode:
			step = one.Path[len(in.Path):]
		case in.After.Shape.IsKeyed():
			step = "[" + step + "]"
		case at != "":
			step = "." + step
		}
		at, alone = at+step, alone+step
	}
	return at, alone, true
}

func (d *Delta) action() FieldAction {
	switch {
	case d.After != nil && (d.After.Kind == UnknownNode || d.After.Kind == SecretNode && d.After.secret == ""):
		return FieldUnknown
	case d.Sign == '+':
		return FieldAdded
	case d.Sign == '-':
		return FieldRemoved
	}
	return FieldChanged
}
