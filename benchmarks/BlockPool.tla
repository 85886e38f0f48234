----------------------------- MODULE BlockPool -----------------------------
(***************************************************************************)
(* The machine of block_pool.py for TLC, so that the two can be timed and  *)
(* their state counts compared. Requests own blocks through tables; a fork *)
(* shares a table; whoever would write a shared block copies it first;     *)
(* blocks before the write boundary are offloaded, and a block is not      *)
(* reused while its offload is pending.                                    *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Blocks, Requests, MaxLength

VARIABLES
  table,       \* request -> its blocks, in order
  filled,      \* request -> whether its last block is full
  references,  \* block -> how many tables hold it
  offload      \* block -> "none", "pending" or "done"

state == <<table, filled, references, offload>>

-----------------------------------------------------------------------------
Held(t)       == {t[i] : i \in DOMAIN t}
LastBlock(r)  == table[r][Len(table[r])]
Idle(r)       == table[r] = <<>>
Writes(r)     == ~Idle(r) /\ ~filled[r]
Allocatable   == {b \in Blocks : references[b] = 0 /\ offload[b] # "pending"}

\* References after the tables of one request changed from t to u.
Recounted(t, u) ==
  [b \in Blocks |-> references[b] + (IF b \in Held(u) THEN 1 ELSE 0)
                                  - (IF b \in Held(t) THEN 1 ELSE 0)]

\* Request r goes on with table t; its last block is full or not.
Becomes(r, t, isFilled) ==
  /\ table'      = [table EXCEPT ![r] = t]
  /\ filled'     = [filled EXCEPT ![r] = isFilled]
  /\ references' = Recounted(table[r], t)

-----------------------------------------------------------------------------
Start ==
  /\ table      = [r \in Requests |-> <<>>]
  /\ filled     = [r \in Requests |-> FALSE]
  /\ references = [b \in Blocks |-> 0]
  /\ offload    = [b \in Blocks |-> "none"]

Allocate(r) ==
  /\ ~Writes(r) /\ Len(table[r]) < MaxLength
  /\ \E b \in Allocatable :
       /\ Becomes(r, Append(table[r], b), FALSE)
       /\ offload' = [offload EXCEPT ![b] = "none"]

Fill(r) ==
  /\ Writes(r) /\ references[LastBlock(r)] = 1
  /\ Becomes(r, table[r], TRUE)
  /\ UNCHANGED offload

CopyOnWrite(r) ==
  /\ Writes(r) /\ references[LastBlock(r)] > 1
  /\ \E b \in Allocatable :
       /\ Becomes(r, [table[r] EXCEPT ![Len(table[r])] = b], FALSE)
       /\ offload' = [offload EXCEPT ![b] = "none"]

Fork(r, s) ==
  /\ ~Idle(r) /\ Idle(s)
  /\ Becomes(s, table[r], filled[r])
  /\ UNCHANGED offload

Free(r) ==
  /\ ~Idle(r)
  /\ Becomes(r, <<>>, FALSE)
  /\ UNCHANGED offload

StartOffload(r) ==
  /\ \E i \in DOMAIN table[r] :
       /\ i < Len(table[r]) \/ filled[r]
       /\ offload[table[r][i]] = "none"
       /\ offload' = [offload EXCEPT ![table[r][i]] = "pending"]
  /\ UNCHANGED <<table, filled, references>>

FinishOffload(b) ==
  /\ offload[b] = "pending"
  /\ offload' = [offload EXCEPT ![b] = "done"]
  /\ UNCHANGED <<table, filled, references>>

Step ==
  \/ \E r \in Requests :
       Allocate(r) \/ Fill(r) \/ CopyOnWrite(r) \/ Free(r) \/ StartOffload(r)
  \/ \E r, s \in Requests : Fork(r, s)
  \/ \E b \in Blocks : FinishOffload(b)

Spec == Start /\ [][Step]_state

-----------------------------------------------------------------------------
Conservation ==
  \A b \in Blocks : references[b] = Cardinality({r \in Requests : b \in Held(table[r])})

OffloadBoundary ==
  \A r \in Requests : Writes(r) => offload[LastBlock(r)] = "none"
=============================================================================
