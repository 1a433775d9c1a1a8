export class Delivered {
    /** of the run, as the stream's first chunk has it; empty before */
    runId: string;
    /** whether the run's end was delivered */
    isOver: boolean;
    /** whether the chat shows something that only a new message takes back */
    isLost: boolean;
    /** From now on the chunks are those of a stream that begins with the run. */
    startOver(): void;
    /**
     * @param {any} chunk
     * @returns {any[]} what is new in it, after the steps that it ends and begins
     */
    take(chunk: any): any[];
    #private;
}
/**
 * a text, a reasoning or a call
 */
export type Part = {
    /**
     * how much of its text was delivered
     */
    length: number;
    /**
     * how much of it the present stream has sent
     */
    at: number;
    /**
     * how many preliminary outputs the present stream has sent
     */
    updates: number;
    /**
     * what else was delivered of it
     */
    marks: Set<string>;
    /**
     * whether an output was delivered: of its input there is nothing more to say
     */
    hasOutput: boolean;
};
