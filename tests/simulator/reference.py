"""The scheduler's rules written out plainly: one step at a time, every request looked at, nothing skipped.

Slow and obvious on purpose; the real one must agree with it to the token.
"""

from dataclasses import dataclass, field

from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime


@dataclass(eq=False)
class Job:
    id: int
    arrival: float
    prompt: int
    output: int
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    preemptions: int = 0
    decoding: bool = False
    first_token_at: float = -1.0
    finished_at: float = -1.0

    @property
    def tokens(self):
        return self.prompt + self.generated


@dataclass
class Reference:
    settings: ServerSettings
    step_time: StepTime
    waiting: list = field(default_factory=list)
    running: list = field(default_factory=list)
    now: float = 0.0
    steps: int = 0

    def __post_init__(self):
        self.free = self.settings.usable_blocks

    def run(self, jobs):
        todo = sorted(jobs, key=lambda job: job.arrival)
        while todo or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, todo[0].arrival)
            while todo and todo[0].arrival <= self.now:
                self.waiting.append(todo.pop(0))
            self.step()
        return jobs

    def need(self, tokens):
        return -(-tokens // self.settings.block_size)

    def drop(self, job):
        self.free += job.blocks
        job.blocks = job.computed = 0
        job.decoding = False

    def step(self):
        settings = self.settings
        budget, chunks, preempted = settings.max_num_batched_tokens, {}, False
        index = 0
        while index < len(self.running):
            job = self.running[index]
            chunk = min(job.tokens - job.computed, budget)
            while (missing := self.need(job.computed + chunk) - job.blocks) > self.free:
                victim = self.running.pop()
                preempted = True
                self.drop(victim)
                victim.preemptions += 1
                self.waiting.insert(0, victim)
                if victim is job:
                    break
            if job not in self.running:
                break
            self.free -= missing
            job.blocks += missing
            chunks[job] = chunk
            budget -= chunk
            index += 1
        while not preempted and self.waiting and budget > 0 and len(self.running) < settings.max_num_seqs:
            job = self.waiting[0]
            chunk = min(job.tokens, budget)
            reach = job.tokens if settings.scheduler_reserve_full_isl else chunk
            spare = int(settings.watermark * settings.num_gpu_blocks) if self.running else 0
            if self.need(reach) + spare > self.free:
                break
            self.running.append(self.waiting.pop(0))
            job.blocks = self.need(chunk)
            self.free -= job.blocks
            chunks[job] = chunk
            budget -= chunk
        self.land(chunks)

    def land(self, chunks):
        decoding = [job for job in chunks if job.decoding]
        prefilling = [job for job in chunks if job not in decoding]
        context = sum(job.computed + chunks[job] for job in chunks)
        self.now += self.step_time.seconds(sum(chunks[job] for job in prefilling), len(decoding), context)
        self.steps += 1
        for job, chunk in chunks.items():
            job.computed += chunk
            if job.computed == job.tokens:
                job.generated += 1
                job.decoding = True
                if job.first_token_at < 0:
                    job.first_token_at = self.now
                if job.generated == job.output:
                    job.finished_at = self.now
        for job in [job for job in self.running if job.finished_at >= 0]:
            self.running.remove(job)
            self.drop(job)
