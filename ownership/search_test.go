package ownership

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// world is a state of the model: indices into the tables of explorer, and the record.
type world struct {
	record uint8 // bit i: the record named the second site i ticks ago
	still  uint8 // ticks since the last move, as far as it matters
	sites  [2]int32
	head   int32
}

// outcome is what a tick may make of one site and the journal.
type outcome struct {
	site, head int32
	grown      int
	broken     string
}

type stepKey struct {
	which      int
	site, head int32
	answers    uint8 // bit i: an answer i ticks old says "this site"; the others say "the other"
}

type tableKey struct {
	site int32
	n    int // -1: pass
}

// explorer searches every reachable world, breadth first. Sites and heads are kept once each and the ticks of one site are
// computed once for each of its surroundings.
type explorer struct {
	cfg     modelConfig
	ids     [2]string
	sites   []site
	siteIDs map[site]int32
	heads   []Head
	headIDs map[Head]int32
	steps   map[stepKey][]outcome
	changes map[tableKey]int32
	from    map[world]world
	root    world
}

func newExplorer(cfg modelConfig) *explorer {
	x := &explorer{cfg: cfg, ids: [2]string{"seed-a", "seed-b"}, siteIDs: map[site]int32{}, headIDs: map[Head]int32{},
		steps: map[stepKey][]outcome{}, changes: map[tableKey]int32{}, from: map[world]world{}}
	a := site{m: cfg.start(x.ids[0], true, Mark{}), data: true}
	b := site{m: cfg.start(x.ids[1], false, Mark{})}
	x.root = world{still: uint8(cfg.dwell), sites: [2]int32{x.site(a), x.site(b)}, head: x.head(Head{Empty: true})}
	return x
}

func (x *explorer) site(s site) int32 {
	s = x.cfg.normal(s)
	id, ok := x.siteIDs[s]
	if !ok {
		id = int32(len(x.sites))
		x.siteIDs[s], x.sites = id, append(x.sites, s)
	}
	return id
}

func (x *explorer) head(h Head) int32 {
	if !h.Empty {
		h.Seq, h.Reason = modelSeq, ""
	}
	id, ok := x.headIDs[h]
	if !ok {
		id = int32(len(x.heads))
		x.headIDs[h], x.heads = id, append(x.heads, h)
	}
	return id
}

// change is a site after n more entries, or a tick later.
func (x *explorer) change(id int32, n int) int32 {
	key := tableKey{id, n}
	to, ok := x.changes[key]
	if !ok {
		if n < 0 {
			to = x.site(x.cfg.pass(x.sites[id]))
		} else {
			to = x.site(x.cfg.grown(x.sites[id], n))
		}
		x.changes[key] = to
	}
	return to
}

// run is one tick of one site with one input.
func (x *explorer) run(which int, site, head int32, in input) outcome {
	w := sim{cfg: &x.cfg, id: x.ids[which], site: x.sites[site], head: x.heads[head], in: in}
	w.run()
	grown := w.appends
	if x.heads[head].Empty && grown > 0 { // the first entry: number 1 becomes the normal number
		shift := w.head.Seq
		for _, seq := range []*uint64{&w.site.m.head.Seq, &w.site.m.waitSeq, &w.site.m.restoreSeq} {
			if *seq > 0 {
				*seq += modelSeq - shift
			}
		}
		grown = 0
	} else if grown > 0 {
		w.site = x.cfg.grown(w.site, grown)
	}
	return outcome{site: x.site(w.site), head: x.head(w.head), grown: grown, broken: w.broken}
}

// all is every outcome of a tick of one site.
func (x *explorer) all(which int, site, head int32, answers uint8) []outcome {
	key := stepKey{which, site, head, answers}
	if outs, ok := x.steps[key]; ok {
		return outs
	}
	var outs []outcome
	seen := map[outcome]bool{}
	add := func(o outcome) {
		if !seen[o] {
			seen[o], outs = true, append(outs, o)
		}
	}
	if x.cfg.crashes {
		add(x.run(which, site, head, input{crash: true}))
	}
	if x.cfg.stops && which == 0 {
		add(x.run(which, site, head, input{stopped: true}))
	}
	for age := -1; age <= x.cfg.ttl; age++ {
		in := input{verdict: Failed, age: age}
		if age >= 0 {
			if in.verdict = Other; answers>>age&1 == 1 {
				in.verdict = Mine
			}
		}
		for _, in.store = range x.cfg.modes {
			in.markFails = false
			add(x.run(which, site, head, in))
			if in.markFails = x.cfg.markFails; in.markFails {
				add(x.run(which, site, head, in))
			}
		}
	}
	x.steps[key] = outs
	return outs
}

// next calls f for every world that may follow w, until it says no. bad tells which promise is broken.
func (x *explorer) next(w world, f func(n world, bad string) bool) bool {
	moves := 1
	if int(w.still) >= x.cfg.dwell {
		moves = 2
	}
	mask := uint8(1)<<(x.cfg.ttl+1) - 1
	for move := range moves {
		record, still := w.record, w.still
		if move == 1 {
			record, still = record^1, 0
		}
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			for _, o1 := range x.all(order[0], w.sites[order[0]], w.head, x.answers(order[0], record, mask)) {
				other := x.change(w.sites[order[1]], o1.grown)
				for _, o2 := range x.all(order[1], other, o1.head, x.answers(order[1], record, mask)) {
					n := world{record: (record<<1 | record&1) & mask, still: min(still+1, uint8(x.cfg.dwell)), head: o2.head}
					n.sites[order[0]], n.sites[order[1]] = x.change(o1.site, o2.grown), o2.site
					bad := o1.broken + o2.broken
					if bad == "" && x.sites[n.sites[0]].child && x.sites[n.sites[1]].child {
						bad = "two sites serve"
					}
					n.sites[0], n.sites[1] = x.change(n.sites[0], -1), x.change(n.sites[1], -1)
					if !f(n, bad) {
						return false
					}
				}
			}
		}
	}
	return true
}

func (x *explorer) answers(which int, record, mask uint8) uint8 {
	if which == 0 {
		return ^record & mask
	}
	return record & mask
}

// explore returns the first broken promise with the shortest story that leads to it, or "".
func (x *explorer) explore() (bad string, story []string) {
	x.from[x.root] = x.root
	layer := []world{x.root}
	t0 := time.Now()
	for len(layer) > 0 {
		var following []world
		for _, w := range layer {
			x.next(w, func(n world, b string) bool {
				if b != "" {
					bad, story = b, append(x.story(w), x.show(n))
					return false
				}
				if _, ok := x.from[n]; !ok {
					x.from[n] = w
					if x.heads[n.head].Generation <= x.cfg.generations {
						following = append(following, n)
					}
				}
				return true
			})
			if bad != "" {
				return bad, story
			}
		}
		layer = following
		if os.Getenv("MODEL_PROGRESS") != "" {
			fmt.Println(len(x.from), len(layer), len(x.sites), time.Since(t0).Round(time.Second))
		}
	}
	return "", nil
}

func (x *explorer) story(w world) []string {
	var back []string
	for ; ; w = x.from[w] {
		back = append(back, x.show(w))
		if w == x.root {
			break
		}
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

func (x *explorer) show(w world) string {
	text := fmt.Sprintf("record %s for %d,", x.ids[w.record&1], w.still)
	for i, id := range w.sites {
		s := x.sites[id]
		text += fmt.Sprintf(" %s: %s", x.ids[i], s.m.state)
		if s.child {
			text += fmt.Sprintf(" etcd(lease %v old, dying=%v)", modelNow.Sub(s.m.lease), s.dying)
		}
		if s.m.waiting {
			text += fmt.Sprintf(" waited %v", modelNow.Sub(s.m.waitFrom))
		}
		if s.marker.Phase != "" {
			text += fmt.Sprintf(" marker %s %d", s.marker.Phase, s.marker.Generation)
		}
		text += ";"
	}
	return text + " journal: " + x.heads[w.head].Describe()
}

// the numbers of the model: small, and in the proportions of the real ones.
func modelDesign() modelConfig {
	return modelConfig{ttl: 1, lease: 4, kill: 1, wait: 5, gap: 2, lost: 2, regain: 2, dwell: 2, generations: 2}
}

func TestNoReachableStateBreaksAPromise(t *testing.T) {
	all := []storeMode{storeUp, storeDown, storeReadOnly, storeLossy, storeUnread}
	for name, change := range map[string]func(*modelConfig){
		"store trouble":            func(c *modelConfig) { c.modes = all },
		"crashes":                  func(c *modelConfig) { c.modes, c.crashes = all[:2], true },
		"crashes without a marker": func(c *modelConfig) { c.modes, c.crashes, c.markFails = all[:1], true, true },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := modelDesign()
			change(&cfg)
			x := newExplorer(cfg)
			bad, story := x.explore()
			t.Logf("%d worlds, %d states of a site", len(x.from), len(x.sites))
			if bad != "" {
				t.Fatalf("%s\n%s", bad, lines(story))
			}
		})
	}
}

func lines(ss []string) string {
	var out string
	for _, s := range ss {
		out += "  " + s + "\n"
	}
	return out
}
